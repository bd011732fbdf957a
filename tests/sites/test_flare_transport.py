"""What carries messages over NVFlare, with a controller that does what it is told."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nvflare.apis.controller_spec import TaskCompletionStatus
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import job_from_meta
from nvflare.apis.shareable import make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from refusals import raising

from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.flare import HEADER, FlareTransport, Rounds, Site, packed, received, unpacked
from fedlit.sites.messages import FAILED, Done
from fedlit.sites.submission import TASK
from fedlit.sites.transport import NoReply, TransportClosedError

ASKED = Envelope.of("train", Done({"round": 1}), {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor([1, 2])})


class Controller:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent, self.cancelled, self.gone = [], [], set()
        self.communicator = self

    def get_client_disconnect_time(self, name: str) -> float | None:
        return 1.0 if name in self.gone else None

    def send(self, task, fl_ctx, targets) -> None:
        self.sent.append((task, targets))

    def cancel_task(self, task) -> None:
        self.cancelled.append(task)

    def reply(self, number: int, content) -> None:
        task, _ = self.sent[number]
        task.result_received_cb(client_task=SimpleNamespace(result=content), fl_ctx=None)


@pytest.fixture
def carried():
    controller, abort = Controller(), Signal()
    transport = FlareTransport(controller, ["north", "south"])
    transport.open(None, abort)
    return transport, controller, abort


def same(one: Envelope, other: Envelope) -> bool:
    return one.header() == other.header() and all(np.array_equal(one.vectors[k], other.vectors[k]) for k in one.vectors)


def test_messages_travel_as_headers_and_arrays(carried):
    transport, controller, _ = carried
    tickets = [transport.send(site, ASKED) for site in ("north", "south")]
    assert [targets for _, targets in controller.sent] == [["north"], ["south"]]
    content = controller.sent[0][0].data
    assert {type(array) for array in from_shareable(content).data.values()} == {np.ndarray}
    assert same(Envelope.from_bytes(unpacked(content)), ASKED)
    for number in (1, 0):
        controller.reply(number, packed(ASKED.header(), ASKED.vectors))
    came = list(transport.collect(tickets))
    assert [ticket.site for ticket, _ in came] == ["south", "north"]
    assert all(same(answer, ASKED) for _, answer in came)


OTHER_DATA = "its reply is damaged: expected a fedlit message, NVFlare has delivered other data"


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (lambda c: c.reply(0, make_reply(ReturnCode.EXECUTION_EXCEPTION)), "EXECUTION_EXCEPTION"),
        (lambda c: c.reply(0, make_reply(ReturnCode.OK)), OTHER_DATA),
        (lambda c: c.reply(0, packed(ASKED.header(), ASKED.vectors | {"n": np.array([1, 3])})), "SHA-256"),
        (lambda c: c.reply(0, packed(b"{", {"w": [[1], [1, 2]]})), OTHER_DATA),
        (lambda c: c.reply(0, packed(b"{", {})), "header"),
        (lambda c: c.sent[0][0].task_done_cb(task=c.sent[0][0], fl_ctx=None), "NVFlare reports"),
        (lambda c: None, "no reply within the deadline"),
    ],
)
def test_a_reply_that_does_not_come_or_is_damaged_is_lost(carried, happens, said):
    transport, controller, _ = carried
    ticket = transport.send("north", ASKED, deadline=0.0)
    controller.sent[0][0].completion_status = TaskCompletionStatus.CLIENT_DEAD
    happens(controller)
    ((_, answer),) = transport.collect([ticket])
    assert isinstance(answer, NoReply)
    assert said in answer.reason
    assert len(controller.cancelled) == ("deadline" in said)


class Rounding(DXOFilter):
    """A hospital's own filter, which changes one array."""

    def __init__(self) -> None:
        super().__init__([DataKind.WEIGHT_DIFF], [DataKind.WEIGHT_DIFF])

    def process_dxo(self, dxo: DXO, shareable, fl_ctx) -> DXO:
        dxo.data["w"] = np.round(dxo.data["w"])
        return dxo


def answered(carried, *filters: DXOFilter, kind: str = DataKind.WEIGHTS) -> Envelope | NoReply:
    """What comes of an answer on which a hospital's own filters have acted."""
    transport, controller, _ = carried
    ticket, content = transport.send("north", ASKED), packed(ASKED.header(), ASKED.vectors, kind)
    for each in filters:
        content = each.process(content, FLContext())
    controller.reply(0, content)
    return dict(transport.collect([ticket]))[ticket]


def test_what_a_hospitals_filter_removes_is_missing_and_named(carried):
    answer = answered(carried, ExcludeVars(["n"]))
    assert answer.vectors.keys() == {"w"}
    assert np.array_equal(answer.vectors["w"], ASKED.vectors["w"])
    assert answer.filtered == "the site's own privacy filter ExcludeVars has removed 'n'"
    assert answer.header()  # it is a whole message by itself


def test_what_a_hospitals_filter_changes_arrives_as_it_is(carried):
    answer = answered(carried, Rounding(), kind=DataKind.WEIGHT_DIFF)
    assert np.array_equal(answer.vectors["w"], np.round(ASKED.vectors["w"]))
    assert answer.filtered == "the site's own privacy filter Rounding may have changed it"


def test_what_a_filter_adds_or_resizes_is_refused(carried):
    more = packed(ASKED.header(), ASKED.vectors | {"x": np.zeros(1)})
    transport, controller, _ = carried
    ticket = transport.send("north", ASKED)
    controller.reply(0, ExcludeVars(["n"]).process(more, FLContext()))
    assert "not those that its header names" in dict(transport.collect([ticket]))[ticket].reason


def test_a_filter_of_what_the_server_sends_is_named_by_the_site():
    content = ExcludeVars(["n"]).process(packed(ASKED.header(), ASKED.vectors), FLContext())
    answer = received(Site().execute(TASK, content, None, Signal()))
    assert answer.content["kind"] == "damaged"
    assert "act on what the server sends: ExcludeVars; use them as task_result_filters only" in answer.content["reason"]


def test_a_late_reply_is_thrown_away(carried):
    transport, controller, _ = carried
    late = transport.send("north", ASKED, deadline=0.0)
    assert isinstance(dict(transport.collect([late]))[late], NoReply)
    controller.reply(0, packed(ASKED.header(), ASKED.vectors))
    ticket = transport.send("north", ASKED)
    controller.reply(1, packed(ASKED.header(), ASKED.vectors))
    assert [each for each, _ in transport.collect([ticket])] == [ticket]


def test_a_site_that_is_gone_is_not_asked(carried):
    transport, controller, _ = carried
    controller.gone = {"north"}
    assert transport.sites() == {"north": False, "south": True}
    ticket = transport.send("north", ASKED)
    assert dict(transport.collect([ticket]))[ticket] == NoReply("it is not connected")
    assert controller.sent == []


def test_a_site_that_came_back_without_the_job_has_lost_what_it_was_asked(carried):
    transport, controller, _ = carried
    tickets = [transport.send(site, ASKED) for site in ("north", "south")]
    transport.lose(["north"])
    controller.reply(1, packed(ASKED.header(), ASKED.vectors))
    came = dict(transport.collect(tickets))
    assert came[tickets[0]] == NoReply("it reconnected without the job")
    assert isinstance(came[tickets[1]], Envelope)
    assert transport.sites() == {"north": False, "south": True}


def test_a_job_that_is_cut_off_asks_nobody(carried):
    transport, _, abort = carried
    ticket = transport.send("north", ASKED)
    abort.trigger(True)
    with pytest.raises(TransportClosedError):
        list(transport.collect([ticket]))


def test_a_job_goes_on_without_a_site_unless_the_federation_says_otherwise(tmp_path):
    """All sites have to be there when NVFlare starts a job; later it asks this again, of the server's own copy."""
    meta = {"name": "fedlit", "min_clients": 2, "mandatory_clients": ["north", "south"]}
    workspace = SimpleNamespace(get_app_dir=lambda job: str(tmp_path), get_site_config_dir=lambda: str(tmp_path))
    engine = SimpleNamespace(get_workspace=lambda: workspace, register_app_command=lambda topic, told: None)
    context = SimpleNamespace(get_engine=lambda: engine, get_job_id=lambda: "1", get_prop={"__job_meta__": meta}.get)
    Rounds("one", ["north", "south"], []).start_controller(context)
    job = job_from_meta(meta | {"job_id": "1"})
    assert (job.min_sites, job.required_sites) == (1, [])


def test_a_site_whose_process_dies_says_so_and_starts_it_with_the_next_message():
    started, process = [], SimpleNamespace(process=None, send_bytes=len, poll=bool, recv_bytes=raising(EOFError()))
    process.start, process.close, process.connection = lambda: started.append(1), lambda: None, process
    site = Site()
    site._process = process
    for number in (1, 2):
        answer = Envelope.from_bytes(site._answer(ASKED.to_bytes(), lambda: False))
        assert (answer.verb, answer.content["reason"]) == (FAILED, "its process died and is being restarted")
        assert len(started) == number


def test_a_history_of_filters_that_is_no_list_is_refused():
    """A site writes it: an error of another class would end the run without the site's name."""
    content = DXO("WEIGHTS", {"a": np.zeros(1)}, {HEADER: "{}", MetaKey.FILTER_HISTORY: 7}).to_shareable()
    with pytest.raises(InvalidMessageError, match="NVFlare has delivered other data"):
        received(content)
