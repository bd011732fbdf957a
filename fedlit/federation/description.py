"""Descriptions of a federation: messages before it trains, and files that are saved with its run."""

from collections.abc import Sequence

from rich.filesize import decimal
from torch import Tensor

from fedlit.core.aggregator import Aggregator
from fedlit.core.flat import SLICES, Layout
from fedlit.core.governing import control_variates_warning, governed
from fedlit.core.labels import labelled_classes
from fedlit.core.messages import Mask, Payload
from fedlit.core.parts import Parts
from fedlit.core.system.files import write_csv
from fedlit.data.clients import group_counts, validation_counts
from fedlit.data.pictures.cache import note_use
from fedlit.federation.monitor import Monitor
from fedlit.federation.session import Session
from fedlit.tracking.base import DataInfo
from fedlit.tracking.run import VALIDATION_COUNTS, Run

MOST_CLIENTS = 100
"""Largest number of clients whose images a tracker lists."""

NAMED = {"stats": "statistics", "squares": "squared norms"}
"""Names of a payload's vectors for readers."""


def announcement(session: Session, monitor: Monitor, done: int = 0) -> list[str]:
    """Return the messages to the user before the first round, or that after ``done`` rounds, one line each."""
    lines = (introduction(session), *session.data.notes, without_positives(session), label_schemes(session))
    correcting = [type(a).__name__ for a in session.federation.aggregators if "control variates" in governed(a)]
    if warned := control_variates_warning(correcting, session.resolved.optimizer):
        lines += (f"warning: {warned}",)
    if session.federation.rounds > 1 and (idle := session.cohorts.idle):  # a trial run has one
        more = f" and {len(idle) - 6} more" if len(idle) > 6 else ""
        lines += (
            f"warning: federation.participation: no round trains {', '.join(idle[:6])}{more}; set another plan or more "
            "rounds, or leave them out with federation.clients",
        )
    if not done and Parts.of(session.program.module).random_features:
        lines += (
            "warning: only the head is trained, on features of a body with random weights; set model.pretrained or "
            "model.weights, or train the body first, in a phase",
        )
    lines += (scoring(session),)
    follows = f"learning rate: follows the model's {session.resolved.scheduler}" if session.resolved.scheduler else ""
    schedule = "; ".join(filter(None, (session.federation.schedule.notice, follows)))
    lines += (session.resolved.placement.notice, _states_in_files(session), schedule, monitor.notice)
    return [line for line in lines if line]


def _states_in_files(session: Session) -> str:
    if not session.resolved.stored or session.engine.folder is None:
        return ""
    nbytes = session.resolved.state_bytes * len(session.clients)
    return f"clients' states: about {nbytes / 1e9:,.1f} GB in files in {session.engine.folder.path.parent}"


def introduction(session: Session) -> str:
    """Return a summary of the run in one line."""
    clients = session.clients
    shown = ", ".join(f"{name} ({client.examples})" for name, client in list(clients.items())[:6])
    more = f", and {len(clients) - 6} more" if len(clients) > 6 else ""
    computing = (
        session.engine.where,
        session.resolved.memory_format,
        "compiled" * bool(session.federation.compile),
        "images on the device" * (session.resolved.placement.name == "resident"),
    )
    return (
        f"{session.algorithm} over {len(clients)} client{'s' * (len(clients) != 1)} (training images): {shown}{more}; "
        f"{session.layout.size:,} parameters; {'; '.join(filter(None, computing))}"
    )


def label_schemes(session: Session) -> str:
    """Return a line with the classes that each client labels, or "" if all clients label all classes."""
    clients = session.clients
    if all(set(client.classes) == set(session.classes) for client in clients.values()):
        return ""
    shown = [f"{name} labels {', '.join(client.classes)}" for name, client in list(clients.items())[:8]]
    return "; ".join(shown) + (f"; and {len(clients) - 8} more clients" if len(clients) > 8 else "")


def scoring(session: Session) -> str:
    """Return a line with what AUROC ranks, or "" for classes of their own under a loss of fedlit, or without scores."""
    step = f"{type(session.module).__name__}.validation_step"
    if session.taken == "softmax":
        return f"classes exclude each other: the scores are the softmax of what {step} returns"
    if session.taken == "probabilities":
        return f"classes exclude each other: the scores are the probabilities that {step} returns"
    unknown = session.taken == "own" and len(session.classes) > 1 and not labelled_classes(session.module)
    return f"each class has a yes or no of its own: the scores are what {step} returns" if unknown else ""


def without_positives(session: Session) -> str:
    """Return a line with the clients that lack positive training images of a class that they label, or ""."""
    if session.data.assignment is None:
        return ""
    counts = session.data.counts()
    empty = counts[(counts["split"] == "train") & counts["labelled"] & (counts["positives"] == 0)]
    clients = empty["client"].unique()
    named = [f"{client} ({', '.join(empty['class'][empty['client'] == client])})" for client in clients[:6]]
    more = f" and {len(clients) - 6} more clients" if len(clients) > 6 else ""
    return f"no positive training image at {', '.join(named)}{more}" if named else ""


def leaves_a_site(total: Payload, session: Session) -> str:
    """Return what a client sends in a round and what it does not; a line for each group of clients that differ."""
    layout, aggregators = session.layout, session.federation.aggregators
    clients_of: dict[str, list[str]] = {}
    for client, mask in session.masks.items():
        clients_of.setdefault(_sent(total, mask, layout, aggregators), []).append(client)
    lines = []
    for text, clients in clients_of.items():
        more = f" and {len(clients) - 6} more" if len(clients) > 6 else ""
        named = f"{', '.join(clients[:6])}{more} send{'s' * (len(clients) == 1)}"
        lines.append(f"each round {named if len(clients_of) > 1 else 'a site sends'} {text}")
    return "\n".join(lines)


def _sent(total: Payload, mask: Mask, layout: Layout, aggregators: Sequence[Aggregator]) -> str:
    sent = []
    for name, vector in total.vectors.items():
        size, (index, _, part) = vector.numel(), name.partition("/")
        number = sum(piece.stop - piece.start for piece in mask.sent(layout, size))
        named = f"{part} of {type(aggregators[int(index)]).__name__}" if part else NAMED.get(name, name)
        if number:
            sent.append(f"{named} [{number:,}{f' of {size:,}' if number < size else ''}]")
    text = f"{decimal(total.nbytes_sent(mask, layout))}: {', '.join(sent)}, its weight and which parts it shares"
    kept, lacked = _parts(layout, mask.kept), _parts(layout, ~(mask.owned | mask.kept))
    text += f"; {' and '.join(kept)} stay{'s' * (len(kept) == 1)} with the client" if kept else ""
    return text + (f"; {' and '.join(lacked)} {'are' if lacked[1:] else 'is'} not sent" if lacked else "")


def _parts(layout: Layout, groups: Tensor) -> list[str]:
    """Return the names of groups [num_groups] that are true and have values: ``norm``, ``head (Edema)`` and so on."""
    filled = {segment.group for segment in layout.segments} | ({layout.stats_group} if layout.stats_size else set())
    true, named = filled & set(groups.nonzero().flatten().tolist()), []
    for name in SLICES:
        of_slice = filled & set(layout.groups((name,)))
        rows = [c for c in layout.classes if true & set(layout.groups((name,), (c,)))]
        if of_slice & true:
            part = f"{name} ({', '.join(rows)})" if rows else f"a part of {name}"
            named.append(name if of_slice <= true else part)
    return named + ["statistics"] * (layout.stats_group in true)


def tags(session: Session) -> dict[str, str]:
    """Return tags to group and filter runs by; tags that were passed to the session take precedence."""
    return {
        "fedlit.engine": type(session.engine).__name__,
        "fedlit.clients": str(len(session.clients)),
        "fedlit.partition": session.data.partition_hash,
        "fedlit.seed": str(session.seed),
        "fedlit.layout": session.layout.fingerprint,
        "mlflow.note.content": introduction(session),
    } | session.tags


def data_info(session: Session) -> DataInfo:
    """Return the description of the data for a tracker."""
    images = {name: client.examples for name, client in session.clients.items()}
    counts = {"clients": len(images), "classes": len(session.classes), "training_images": sum(images.values())}
    kind = type(session.data)
    by_client = {f"training_images/{name}": number for name, number in list(images.items())[:MOST_CLIENTS]}
    source = f"{kind.__module__}.{kind.__qualname__}"
    return DataInfo(kind.__name__, source, session.data.partition_hash, counts | by_client)


def save_partition(session: Session, run: Run) -> None:
    """Save the partition with the run, as a table and as a figure."""
    if not run.main or session.data.assignment is None:
        return
    from fedlit.data.organisations import save_classes  # pandas takes half a second to import

    note_use(session.data.cached(), run.directory)
    session.data.save_partition(run.directory / "partition.csv")
    counts = session.data.counts()
    listed = ["partition.csv", "classes.csv", "labels.csv", VALIDATION_COUNTS]
    if run.figures:
        from fedlit.tracking.figures import partition_figure  # matplotlib takes a second to import

        train = counts[counts["split"] == "train"]
        positives = train.assign(shown=train["positives"].where(train["labelled"])).pivot(
            index="client", columns="class", values="shown"
        )
        positives = positives.reindex(index=list(session.clients), columns=list(session.data.classes))
        sizes = train.groupby("client")["images"].first().reindex(list(session.clients))
        partition_figure(positives, sizes, "Positive training images").canvas.print_png(run.directory / "partition.png")
        listed.append("partition.png")
    save_classes(session.data, run.directory / "classes.csv")
    write_csv(counts, run.directory / "labels.csv")
    write_csv(validation_counts(session.data.clients.values(), session.data.classes), run.directory / VALIDATION_COUNTS)
    listed += ["left_out.csv"] * session.data.save_left_out(run.directory / "left_out.csv")
    if len(groups := group_counts(session.data.clients.values(), session.data.test_sets)):
        write_csv(groups, run.directory / "groups.csv")
        listed.append("groups.csv")
    for name in listed:
        run.artifact(run.directory / name)
