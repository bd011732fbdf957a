"""Calls of torch.cuda without a GPU: stand-ins take the real functions' arguments and record their order."""

import inspect
import warnings
from unittest.mock import MagicMock, call, create_autospec

import pytest
import torch

from fedlit.core.system.devices import to_device
from fedlit.federation.devices import free_memory
from fedlit.federation.engines.captured import CUDARecorder
from fedlit.federation.engines.read_ahead import ReadAhead

GPU = torch.device("cuda", 1)
NAMES = ("current_stream", "get_sync_debug_mode", "graph_pool_handle", "mem_get_info", "set_sync_debug_mode", "stream")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Stand-ins for torch.cuda."""
    played = MagicMock()
    for name in NAMES:
        played.attach_mock(create_autospec(getattr(torch.cuda, name)), name)
        monkeypatch.setattr(torch.cuda, name, getattr(played, name))
    played.attach_mock(create_autospec(torch.cuda.graph), "graph")
    monkeypatch.setattr(torch.cuda, "graph", played.graph)
    for name in ("CUDAGraph", "Stream", "set_device"):
        monkeypatch.setattr(torch.cuda, name, getattr(played, name))
    played.Stream.return_value.device_index = GPU.index
    played.get_sync_debug_mode.return_value = 0
    monkeypatch.setattr(torch.cuda, "default_generators", ["of the first GPU", "of the second"])
    return played


def test_steps_beside_the_present_stream_wait_for_it_and_it_for_them(cuda: MagicMock):
    recorder, own, present = CUDARecorder(GPU), cuda.Stream.return_value, cuda.current_stream.return_value
    assert cuda.Stream.call_args == call(GPU)
    cuda.mock_calls.clear()
    with recorder.warming() as waits:
        assert cuda.mock_calls[-1] == call.set_sync_debug_mode("warn")
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        cuda.work()
    assert waits == ["called a synchronizing CUDA operation"]
    order = [each for each in cuda.mock_calls if each[0] != "get_sync_debug_mode"]
    assert order == [
        call.current_stream(),
        call.Stream().wait_stream(present),
        call.stream(own),
        call.stream().__enter__(),
        call.set_sync_debug_mode("warn"),
        call.work(),
        call.set_sync_debug_mode(0),
        call.stream().__exit__(None, None, None),
        call.current_stream().wait_stream(own),
    ]


def test_what_fails_beside_leaves_the_mode_as_it_was(cuda: MagicMock):
    recorder = CUDARecorder(GPU)
    with pytest.raises(ValueError, match="no step"), recorder.warming():
        raise ValueError("no step")
    assert cuda.set_sync_debug_mode.mock_calls == [call("warn"), call(0)]


def test_a_graph_is_captured_with_the_generator_of_its_device(cuda: MagicMock):
    recorder, graph = CUDARecorder(GPU), cuda.CUDAGraph.return_value
    cuda.mock_calls.clear()
    replay = recorder.record(cuda.work)
    assert replay is graph.replay
    kept = {"pool": cuda.graph_pool_handle.return_value, "stream": cuda.Stream.return_value}
    assert cuda.mock_calls == [
        call.CUDAGraph(),
        call.CUDAGraph().register_generator_state("of the second"),
        call.graph(graph, **kept, capture_error_mode="thread_local"),
        call.graph().__enter__(),
        call.work(),
        call.graph().__exit__(None, None, None),
    ]


@pytest.mark.skipif(torch.version.cuda is None, reason="this build of PyTorch has no CUDA graphs")
def test_graphs_of_this_pytorch_have_what_is_called():
    assert callable(torch.cuda.CUDAGraph.replay)
    assert callable(torch.cuda.CUDAGraph.register_generator_state)
    assert "device" in (inspect.getdoc(torch.cuda.Stream) or "")


def test_a_tensor_goes_to_a_gpu_from_page_locked_memory():
    tensor = MagicMock(device=torch.device("cpu"))
    assert to_device(tensor, GPU) is tensor.pin_memory.return_value.to.return_value
    assert tensor.pin_memory.return_value.to.call_args == call(GPU, non_blocking=True)
    there = MagicMock(device=GPU)
    assert to_device(there, GPU) is there
    assert to_device(there, torch.device("cpu")) is there.to.return_value


def test_a_batch_that_is_read_ahead_is_page_locked_where_it_is_not_on_the_gpu(cuda: MagicMock):
    here, there = MagicMock(device=torch.device("cpu")), MagicMock(device=GPU)
    stream = MagicMock(**{"take.return_value": (here, there), "dataset.finish.side_effect": lambda taken: taken})
    ahead = ReadAhead(GPU)
    assert ahead(stream, 3, last=False) == (here, there)  # nobody could know of it
    assert ahead(stream, 4, last=True) == (here.pin_memory.return_value, there)
    assert stream.take.mock_calls == [call(3), call(4)]
    assert cuda.set_device.mock_calls == [call(GPU)]


def test_free_memory_is_the_devices(cuda: MagicMock):
    cuda.mem_get_info.return_value = (3, 8)
    assert free_memory(GPU) == 3
    assert cuda.mem_get_info.call_args == call(GPU)
