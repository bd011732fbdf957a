"""What travels: header and arrays come out as they went in, and nothing else is taken for a message."""

import json
import math
import struct
import subprocess
import sys

import pytest
import torch
from refusals import refused
from toys import ToyNet

from fedlit.core.flat import FlatModel
from fedlit.core.messages import Mask
from fedlit.sites.envelope import DTYPES, LARGEST_HEADER, PREFIX, PROTOCOL, Envelope, Header, InvalidMessageError, split
from fedlit.sites.messages import Done, Failure
from fedlit.sites.payloads import filled, module_state, module_tensors

TENSORS = {
    "w": torch.tensor([1.5, -0.0, math.inf, math.nan]),
    "count": torch.tensor(7),
    "empty": torch.zeros(0, 3),
    "table": torch.arange(6.0).view(2, 3).T,
    "mask": torch.tensor([True, False]),
}


def sent(**said) -> Envelope:
    return Envelope.of("reply", Done(said), TENSORS)


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES])
def test_every_type_of_number_comes_out_as_it_went_in(dtype):
    tensor = torch.tensor([0, 1, 1]).to(dtype)
    out = Envelope.from_bytes(Envelope.of("reply", Done(), {"x": tensor}).to_bytes()).tensors()["x"]
    assert out.dtype == dtype
    assert torch.equal(out, tensor)


def test_shapes_and_every_bit_come_out_as_they_went_in():
    out = Envelope.from_bytes(sent().to_bytes()).tensors()
    for name, tensor in TENSORS.items():
        assert out[name].shape == tensor.shape
        assert out[name].numpy().tobytes() == tensor.contiguous().numpy().tobytes(), name


def test_arrays_have_memory_of_their_own():
    content = bytearray(sent().to_bytes())
    out = Envelope.from_bytes(bytes(content)).tensors()["w"]
    out += 1  # which a view of the message would refuse


def test_numbers_that_json_does_not_know_travel_in_the_header():
    said = {"loss": math.nan, "most": math.inf, "least": -math.inf, "third": 1 / 3}
    envelope = Envelope.of("reply", Done(said))
    json.loads(envelope.header(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    out = Envelope.from_bytes(envelope.to_bytes()).content["values"]
    assert repr(out) == repr(said)


def test_bfloat16_is_refused_with_its_name():
    with pytest.raises(TypeError, match=r"'h': expected one of .*found torch\.bfloat16"):
        Envelope.of("reply", Done(), {"h": torch.zeros(2, dtype=torch.bfloat16)})


def test_a_header_of_more_than_64_kb_is_refused():
    with pytest.raises(ValueError, match=r"header of a message 'reply' has 70,\d+ bytes"):
        sent(names=["x" * 70_000]).to_bytes()


def test_every_byte_counts():
    """One bit anywhere: another message, or none; never the same one."""
    content = sent(loss=0.25).to_bytes()
    start = PREFIX.size + PREFIX.unpack_from(content)[2]
    whole = Envelope.from_bytes(content)
    for place in [*range(0, start, 7), *range(start, len(content))]:
        changed = bytearray(content)
        changed[place] ^= 1
        try:
            found = Envelope.from_bytes(bytes(changed))
        except InvalidMessageError:
            continue
        assert place < start, "an array was changed"
        assert found.header() != whole.header()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c[:5], "of 5"),
        (lambda c: c[:-3], ""),
        (lambda c: c + b"x", "1 bytes"),
        (lambda c: b"PICKLE" + c[6:], ""),
        (lambda c: c[:6] + struct.pack("<H", PROTOCOL + 1) + c[8:], f"found protocol {PROTOCOL + 1}"),
        (lambda c: c[:8] + struct.pack("<I", LARGEST_HEADER + 1) + c[12:], "found 65,537"),
        (lambda c: c[: PREFIX.size] + b"[" + c[PREFIX.size + 1 :], ""),
        (lambda c: c.replace(b'"float32"', b'"object_"'), "found 'object_'"),
        (lambda c: c.replace(b'"empty","float32",0', b'"empty","float32",-'), ""),
    ],
)
def test_what_is_no_message_is_told(change, words):
    with refused(InvalidMessageError, words):
        Envelope.from_bytes(change(sent().to_bytes()))


def test_a_message_with_other_fields_is_told():
    with refused(InvalidMessageError, "kind, reason, values"):
        sent().message(Failure)


def test_a_module_of_a_thousand_tensors_fits_into_a_header():
    state = {f"backbone.features.denseblock4.denselayer{i}.norm1.weight": torch.randn(3, 2) for i in range(1000)}
    state["steps"], state["seen"] = torch.tensor(7), torch.tensor([True])
    envelope = Envelope.from_bytes(Envelope.of("prepare", Done(), module_tensors(state)).to_bytes())
    assert len(envelope.header()) < 1000
    found = module_state(envelope.tensors(), {name: torch.zeros_like(tensor) for name, tensor in state.items()})
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    with pytest.raises(
        ValueError, match=r"expected a model of 6,000 of float32 and 1 of int64 .*made one of 6,000 of float32$"
    ):
        module_state(envelope.tensors(), {name: t for name, t in state.items() if name.startswith("backbone")})


@pytest.mark.parametrize("lie", ["none", "a value more", "a value less", "another size"])
def test_a_shared_vector_has_as_many_values_as_its_client_shares(lie):
    layout = FlatModel(ToyNet()).layout
    mask = Mask.everything(layout).keeping(layout.groups(("head",)))
    whole = torch.arange(1.0, layout.size + 1)
    cut = mask.cut(layout, whole)
    if lie == "none":
        whole[layout.slices["head"]] = 0
        assert torch.equal(filled(cut, "w", layout.size, mask, layout), whole)
        return
    wrong, size = {
        "a value more": (torch.cat([cut, cut[:1]]), layout.size),
        "a value less": (cut[1:], layout.size),
        "another size": (cut, layout.size + 7),
    }[lie]
    with refused(InvalidMessageError, "'w'"):
        filled(wrong, "w", size, mask, layout)


def test_who_hands_a_message_on_leaves_its_hash_to_the_reader():
    content = bytearray(Envelope.of("train", Done(), {"w": torch.ones(3)}).to_bytes())
    content[-1] ^= 1
    header, arrays = split(bytes(content))
    assert Header.read(header).cut(arrays)["w"].shape == (3,)
    with refused(InvalidMessageError, "the arrays of a message were changed on their way"):
        Envelope.from_bytes(bytes(content))


def test_arrays_other_than_those_of_the_header_are_told():
    envelope = Envelope.of("train", Done(), {"w": torch.ones(3), "v": torch.ones(2)})
    head, arrays = Header.read(envelope.header()), envelope.vectors
    assert Envelope.of_arrays(head, arrays).tensors()["w"].tolist() == [1, 1, 1]
    for odd in ({"w": arrays["w"]}, arrays | {"u": arrays["w"]}, arrays | {"v": arrays["v"].astype("float64")}):
        with refused(InvalidMessageError, "the arrays of a message are not those that its header names"):
            Envelope.of_arrays(head, odd)
    with refused(InvalidMessageError, "the arrays of a message were changed on their way"):
        Envelope.of_arrays(head, arrays | {"v": arrays["v"] * 2})


def test_exchanged_arrays_are_other_arrays():
    one, two = torch.zeros(2), torch.ones(2)
    digests = [Envelope.of("reply", Done(), arrays).digest for arrays in ({"a": one, "b": two}, {"b": one, "a": two})]
    assert digests[0] != digests[1]
    parts = Envelope.of("reply", Done(), {"a": torch.cat([one, two]), "b": one}).digest
    assert parts != Envelope.of("reply", Done(), {"a": one, "b": torch.cat([two, one])}).digest


def test_who_hands_messages_on_needs_no_pytorch():
    script = "import sys, fedlit.sites.flare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
