"""NVFlare as a transport: the server's job runs the rounds, and a site's job forwards messages to its own process.

A job names the two classes of this module, `Rounds` and `Site`, and contains only configuration. Each message is a
DXO: its named arrays are the data, and its header is in the metadata.
"""

import os
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller, Task
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedlit.sites.envelope import Envelope, Header, InvalidMessageError, joined, split
from fedlit.sites.messages import FAILED, Failure, printable
from fedlit.sites.process import DIED, SiteProcess
from fedlit.sites.submission import CONFIG, TASK, TOPIC
from fedlit.sites.transport import NoReply, Ticket, Transport, TransportClosedError

SITE_FILE, SERVER_FILE = "fedlit-site.yaml", "fedlit-server.yaml"
"""The files with the rules of a site and of a server, in their folders ``local``."""

HEADER = "fedlit"
"""Key of a message's header in the metadata of its DXO."""

HEARD = 15
"""Seconds for which a job that has ended waits for its lead to notice."""

UPDATE = "vectors/w"
"""Array of an update, by which NVFlare's filters of updates know it."""

LOOK = 0.2
"""Seconds between two checks whether a job was aborted."""


class Rounds(Controller):
    """The server's side of a job, which runs the federation in the job's process.

    Args:
        name: Name of a new run.
        sites: Names of the sites.
        fresh: Sites whose clients start afresh if their state is missing.
    """

    def __init__(self, name: str, sites: list[str], fresh: list[str]) -> None:
        super().__init__(task_check_period=0.05)
        self._asked = name, tuple(sites), tuple(fresh)

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Prepare the run, and register the command by which the lead asks for its progress."""
        from fedlit.sites.server import Hosted  # only the server's side needs all of fedlit

        name, sites, fresh = self._asked
        workspace, job = fl_ctx.get_engine().get_workspace(), fl_ctx.get_job_id()
        config = Path(workspace.get_app_dir(job)) / "config" / CONFIG
        self._transport = FlareTransport(self, sites)
        server_file = Path(workspace.get_site_config_dir()).absolute() / SERVER_FILE
        meta = fl_ctx.get_prop(FLContextKey.JOB_META)
        # All sites must be connected when a job begins; on_site_error then decides whether it continues without one.
        meta.update({JobMetaKey.MIN_CLIENTS.value: 1, JobMetaKey.MANDATORY_CLIENTS.value: []})
        lead = str(meta.get(JobMetaKey.SUBMITTER_NAME.value, ""))
        self._hosted = Hosted(config.absolute(), name, self._transport, fresh=fresh, server=server_file, lead=lead)
        fl_ctx.get_engine().register_app_command(
            TOPIC, lambda topic, asked, context: self._hosted.progress(asked or {})
        )

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the federation, and wait until the lead knows how it ended."""
        self._transport.open(fl_ctx, abort_signal)
        self._hosted.train()
        if not abort_signal.triggered:
            self._hosted.heard.wait(HEARD)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: the run has closed what it had open."""

    def process_result_of_unknown_task(self, *args: Any) -> None:
        """Discard a late reply."""


class FlareTransport(Transport):
    """Transport that sends messages as tasks of NVFlare, whose results are the replies."""

    name = "over NVFlare"

    def __init__(self, controller: Controller, sites: Sequence[str]) -> None:
        self._controller, self._names = controller, tuple(sites)
        self._came: queue.Queue[tuple[Ticket, Envelope | NoReply]] = queue.Queue()
        self._until: dict[Ticket, tuple[Task, float | None]] = {}
        self._number, self._lost = 0, frozenset()

    def open(self, fl_ctx: FLContext, abort: Signal) -> None:
        """Start the transport; it closes when the job is aborted."""
        self._fl_ctx, self._abort = fl_ctx, abort

    def sites(self) -> Mapping[str, bool]:
        """Return the sites; a site is connected unless NVFlare considers it gone."""
        gone = self._controller.communicator.get_client_disconnect_time
        return {name: name not in self._lost and gone(name) is None for name in self._names}

    def send(self, site: str, envelope: Envelope, deadline: float | None = None) -> Ticket:
        """Send a message; if the site is gone, the missing reply is noted immediately."""
        self._number += 1
        ticket = Ticket(site, self._number)
        if not self.sites()[site]:
            self._came.put((ticket, NoReply("it is not connected")))
            return ticket
        task = Task(
            TASK,
            packed(envelope.header(), envelope.vectors),
            result_received_cb=lambda client_task, fl_ctx: self._received(ticket, client_task),
            task_done_cb=lambda task, fl_ctx: self._done(ticket, task),
        )
        self._until[ticket] = task, None if deadline is None else time.monotonic() + deadline
        self._controller.send(task, self._fl_ctx, targets=[site])
        return ticket

    def collect(self, tickets: Sequence[Ticket]) -> Iterator[tuple[Ticket, Envelope | NoReply]]:
        """Yield replies as they come.

        Raises:
            TransportClosedError: If the job was aborted.
        """
        wanted = set(tickets)
        while wanted:
            if self._abort.triggered:
                raise TransportClosedError("the job was aborted: a site's job has died, or a user has aborted it")
            try:
                ticket, answer = self._came.get(timeout=LOOK)
            except queue.Empty:
                self._cancel_late()
                continue
            if ticket in wanted:
                wanted.discard(ticket)
                yield ticket, answer

    def close(self) -> None:
        """Do nothing: sites end with the job."""

    def lose(self, sites: Sequence[str]) -> None:
        """Treat sites as gone: their NVFlare was restarted, and does not know the job."""
        self._lost |= frozenset(sites)
        for ticket, (task, _) in list(self._until.items()):
            if ticket.site in self._lost and self._until.pop(ticket, None):
                self._came.put((ticket, NoReply("it reconnected without the job")))
                self._controller.cancel_task(task)

    def _received(self, ticket: Ticket, client_task: Any) -> None:
        result, client_task.result = client_task.result, None
        if result.get_return_code() != ReturnCode.OK:
            answer: Envelope | NoReply = NoReply(f"NVFlare's job there answers {result.get_return_code()}; see its log")
        else:
            try:
                answer = received(result)
            except InvalidMessageError as error:
                answer = NoReply(f"its reply is damaged: {error}")
        self._came.put((ticket, answer))
        self._until.pop(ticket, None)

    def _done(self, ticket: Ticket, task: Task) -> None:
        """Note the missing reply of a task that has ended without one."""
        if self._until.pop(ticket, None):
            self._came.put((ticket, NoReply(f"no reply: NVFlare reports {task.completion_status.value}")))

    def _cancel_late(self) -> None:
        now = time.monotonic()
        for ticket, (task, until) in list(self._until.items()):
            if until is not None and until <= now and self._until.pop(ticket, None):
                self._came.put((ticket, NoReply("no reply within the deadline")))
                self._controller.cancel_task(task)


class Site(Executor):
    """A site's side of a job, which forwards messages to the site's own process, and its replies to the server.

    The site's process holds data, device, states and policy, and is a child of the job's process. If it dies, the reply
    reports it, and the next message starts it again. It ends with the job.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process: SiteProcess | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start the site's process with the job, because its imports take seconds, and end it with the job."""
        if event_type == EventType.START_RUN:
            workspace = fl_ctx.get_engine().get_workspace()
            os.chdir(workspace.get_root_dir())  # relative paths in the site's own file start there
            file = Path(workspace.get_site_config_dir()).absolute() / SITE_FILE
            lead = (fl_ctx.get_prop(FLContextKey.JOB_META) or {}).get(JobMetaKey.SUBMITTER_NAME.value, "")
            self._process = SiteProcess(fl_ctx.get_identity_name(), file, str(lead))
            self._process.start()
        elif event_type == EventType.END_RUN and self._process is not None:
            self._process.close()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Forward a message to the site's process, and return its answer."""
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            header, arrays = split(self._answer(unpacked(shareable), lambda: abort_signal.triggered))
            answer = Header.read(header).cut(arrays)  # the server checks its hash
            return packed(header, answer, DataKind.WEIGHT_DIFF if UPDATE in answer else DataKind.WEIGHTS)
        except InvalidMessageError as error:
            reply = Envelope.of(FAILED, Failure("damaged", f"the message that arrived is damaged: {error}"))
            return packed(reply.header(), reply.vectors)

    def _answer(self, content: bytes, unwanted: Callable[[], bool]) -> bytes:
        site = self._process
        try:
            if site.process is None:
                site.start()
            site.connection.send_bytes(content)
            while not site.connection.poll(LOOK):
                if unwanted():
                    site.process.kill()
            return site.connection.recv_bytes()
        except (EOFError, OSError):
            site.close()
            return Envelope.of(FAILED, Failure("failed", DIED)).to_bytes()


def packed(header: bytes, arrays: Mapping[str, np.ndarray], kind: str = DataKind.WEIGHTS) -> Shareable:
    """Pack a message for NVFlare as a DXO, whose arrays a site's own privacy filters may remove or change."""
    return DXO(kind, dict(arrays), {HEADER: header.decode()}).to_shareable()


def received(content: Shareable) -> Envelope:
    """Unpack a message that NVFlare has delivered, and check its hash, unless the site's own filters have acted on it.

    Raises:
        InvalidMessageError: If it is not a valid message.
    """
    header, arrays, filters = _delivered(content)
    arrays = {name: np.require(array, requirements="CW") for name, array in arrays.items()}
    return Envelope.of_arrays(Header.read(header), arrays, filters)


def unpacked(content: Shareable) -> bytes:
    """Unpack a message that NVFlare has delivered, as bytes.

    Raises:
        InvalidMessageError: If it is not a message, or this site's own filters have acted on it.
    """
    header, arrays, filters = _delivered(content)
    if filters:
        raise InvalidMessageError(
            f"this site's own privacy filters act on what the server sends: {', '.join(filters)}; use them as "
            "task_result_filters only"
        )
    return joined(header, arrays.values())


def _delivered(content: Shareable) -> tuple[bytes, dict[str, np.ndarray], tuple[str, ...]]:
    """Return the header, the arrays, and the names of the filters that have acted on a message."""
    try:
        dxo = from_shareable(content)
        header, filters = dxo.get_meta_prop(HEADER), list(dxo.get_filter_history() or ())[:8]  # a site may write more
    except (ValueError, TypeError, AttributeError):
        dxo = header = None
    if not isinstance(header, str) or not all(isinstance(array, np.ndarray) for array in dxo.data.values()):
        raise InvalidMessageError("expected a fedlit message, NVFlare has delivered other data")
    return header.encode(), dxo.data, tuple(printable(str(name), 60) for name in filters)
