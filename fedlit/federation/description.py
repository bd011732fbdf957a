"""A federation in words and pictures: what is told before it trains, and what is kept with its run."""

from collections.abc import Sequence

from rich.filesize import decimal

from fedlit.core.aggregator import Aggregator, governed
from fedlit.core.messages import Payload
from fedlit.core.optimizer import control_variates_warning
from fedlit.data.pictures.cached import note_use
from fedlit.federation.monitor import Monitor
from fedlit.federation.session import Session
from fedlit.tracking.run import Run


def announcement(session: Session, monitor: Monitor) -> list[str]:
    """List, a line each, what the person at the keyboard should know before the first round."""
    lines = (introduction(session), *session.data.notes, without_positives(session), label_schemes(session))
    correcting = [type(a).__name__ for a in session.federation.aggregators if "control variates" in governed(a)]
    if warned := control_variates_warning(correcting, session.optimizer):
        lines += (f"warning: {warned}",)
    notices = (session.placement.notice, _states_in_files(session), session.federation.schedule.notice, monitor.notice)
    lines += notices
    return [line for line in lines if line]


def _states_in_files(session: Session) -> str:
    """Say where the clients' states live, if not in memory; "" otherwise."""
    if not session.stored or session.engine.folder is None:
        return ""
    nbytes = session.state_bytes * len(session.clients)
    return f"clients' states: about {nbytes / 1e9:,.1f} GB in files in {session.engine.folder.path.parent}"


def introduction(session: Session) -> str:
    """Say in one line what is about to run."""
    clients = session.clients
    shown = ", ".join(f"{name} ({client.examples})" for name, client in list(clients.items())[:6])
    more = f", and {len(clients) - 6} more" if len(clients) > 6 else ""
    computing = f"; {session.memory_format}" * bool(session.memory_format)
    resident = "; pictures on the device" * (session.placement.name == "resident")
    computing += "; compiled" * bool(session.federation.compile) + "; one CUDA graph a step" * (
        session.federation.cuda_graph is True
    )
    return (
        f"{session.algorithm} over {len(clients)} client{'s' * (len(clients) != 1)} (training images): {shown}{more}; "
        f"{session.layout.size:,} parameters; {session.engine.where}{computing}{resident}"
    )


def label_schemes(session: Session) -> str:
    """Say in one line who labels which classes; "" where all label all of them."""
    clients = session.clients
    if all(set(client.classes) == set(session.classes) for client in clients.values()):
        return ""
    shown = [f"{name} labels {', '.join(client.classes)}" for name, client in list(clients.items())[:8]]
    return "; ".join(shown) + (f"; and {len(clients) - 8} more clients" if len(clients) > 8 else "")


def without_positives(session: Session) -> str:
    """Name the clients that train on no positive image of a class which they label; "" where there is none."""
    if session.data.assignment is None:
        return ""
    counts = session.data.counts()
    empty = counts[(counts["split"] == "train") & counts["labelled"] & (counts["positives"] == 0)]
    clients = empty["client"].unique()
    named = [f"{client} ({', '.join(empty['class'][empty['client'] == client])})" for client in clients[:6]]
    more = f" and {len(clients) - 6} more clients" if len(clients) > 6 else ""
    return f"no positive training image at {', '.join(named)}{more}" if named else ""


def leaves_a_site(total: Payload, aggregators: Sequence[Aggregator]) -> str:
    """List what each client sends in a round, by name and number of values; nothing else leaves a site in training."""
    sent = []
    for name, vector in total.vectors.items():
        index, _, part = name.partition("/")
        sent.append(f"{f'{part} of {type(aggregators[int(index)]).__name__}' if part else name} [{vector.numel():,}]")
    return f"each round a site sends {decimal(total.nbytes)}: {', '.join(sent)}, its weight and which parts it shares"


def tags(session: Session) -> dict[str, str]:
    """Give what people group and filter runs by; the session's given tags win, as a run may begin with a phase."""
    return {
        "fedlit.algorithm": session.algorithm,
        "fedlit.engine": type(session.engine).__name__,
        "fedlit.clients": str(len(session.clients)),
        "fedlit.partition": session.data.partition_hash,
        "fedlit.seed": str(session.seed),
        "fedlit.layout": session.layout.fingerprint,
        "mlflow.note.content": introduction(session),
    } | session.tags


def save_partition(session: Session, run: Run) -> None:
    """Save the partition with the run, as a table and as a picture."""
    if not run.main or session.data.assignment is None:
        return
    # matplotlib takes a second to import, and pandas half of one.
    from fedlit.data.organisations import save_classes
    from fedlit.tracking.figures import partition_figure

    note_use(session.data.cached(), run.directory)
    session.data.save_partition(run.directory / "partition.csv")
    counts = session.data.counts()
    train = counts[counts["split"] == "train"]
    positives = train.assign(shown=train["positives"].where(train["labelled"])).pivot(
        index="client", columns="class", values="shown"
    )
    positives = positives.reindex(index=list(session.clients), columns=list(session.data.classes))
    sizes = train.groupby("client")["images"].first().reindex(list(session.clients))
    partition_figure(positives, sizes, "Training images").savefig(run.directory / "partition.png", dpi=150)
    save_classes(session.data, run.directory / "classes.csv")
    listed = ["left_out.csv"] * session.data.save_left_out(run.directory / "left_out.csv")
    for name in ("partition.csv", "partition.png", "classes.csv", *listed):
        run.artifact(run.directory / name)
