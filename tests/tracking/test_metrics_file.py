import math
import struct

import numpy as np
import pytest
from refusals import refused

from fedlit.core.errors import DataError
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import Result


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.csv"


def bits(value):
    return struct.pack("<d", value)


def test_values_come_back_bit_for_bit_and_in_order(path):
    rng = np.random.default_rng(0)
    values = np.frombuffer(rng.bytes(8 * 300), dtype=np.float64)
    values = [float(value) for value in values if not math.isnan(value)]
    values += [0.1, -0.0, 5e-324, float("inf"), -float("inf"), np.float32(0.1), 3]
    file = MetricsFile(path)
    for step, value in enumerate(values):
        file.append({"loss": value}, step)
    rows = list(MetricsFile(path).rows())
    assert [(step, key) for step, key, _ in rows] == [(step, "loss") for step in range(len(values))]
    assert [bits(row[2]) for row in rows] == [bits(float(value)) for value in values]


def test_a_row_is_on_disk_when_append_returns_and_nan_is_nan(path):
    file = MetricsFile(path)
    file.append({"val/auroc/Hernia": float("nan"), "b": 2.0}, 3)
    assert path.read_text() == "step,key,value\n3,val/auroc/Hernia,nan\n3,b,2.0\n"
    assert math.isnan(next(MetricsFile(path).rows())[2])
    assert file.size() == path.stat().st_size


def test_a_comma_in_a_key_survives_and_pandas_reads_it(path):
    pandas = pytest.importorskip("pandas")
    MetricsFile(path).append({"client/St. Mary, London/loss": 0.5}, 0)
    assert list(MetricsFile(path).rows()) == [(0, "client/St. Mary, London/loss", 0.5)]
    assert pandas.read_csv(path)["key"].tolist() == ["client/St. Mary, London/loss"]


@pytest.mark.parametrize("key", ["two\nlines", "carriage\rreturn", 'a "quote"'])
def test_a_key_that_would_break_the_file_is_refused_and_nothing_is_written(path, key):
    file = MetricsFile(path)
    with refused(DataError, "metric"):
        file.append({"fine": 1.0, key: 1.0}, 0)
    assert list(file.rows()) == []


def test_no_file_has_no_rows_can_be_truncated_and_no_metrics_make_none(path):
    file = MetricsFile(path)
    file.truncate(5)
    file.append({}, 0)
    assert (list(file.rows()), file.size()) == ([], 0)
    file.close()
    assert not path.exists()


def test_truncate_drops_later_steps_and_a_torn_line(path):
    file = MetricsFile(path)
    for step in range(6):
        file.append({"a": step / 7, "b": -step}, step)
    with path.open("a") as torn:
        torn.write("3,a,0.12")
    kept = [row for row in MetricsFile(path).rows() if row[0] <= 3]
    resumed = MetricsFile(path)
    resumed.truncate(3)
    assert list(resumed.rows()) == kept
    resumed.append({"a": 4 / 7}, 4)
    assert list(MetricsFile(path).rows()) == [*kept, (4, "a", 4 / 7)]
    assert [entry.name for entry in path.parent.iterdir()] == ["metrics.csv"]


@pytest.mark.parametrize("torn", ["2,a,0.", "2", "2,a", "2,a,0.5"])
def test_append_after_a_kill_starts_on_a_line_of_its_own(path, torn):
    MetricsFile(path).append({"a": 1.0}, 1)
    with path.open("a") as file:
        file.write(torn)
    assert list(MetricsFile(path).rows()) == [(1, "a", 1.0)]
    MetricsFile(path).append({"a": 0.25}, 2)
    assert list(MetricsFile(path).rows()) == [(1, "a", 1.0), (2, "a", 0.25)]


def test_a_torn_header_is_written_again(path):
    path.parent.mkdir()
    path.write_text("step,ke")
    MetricsFile(path).append({"a": 1.0}, 0)
    assert path.read_text() == "step,key,value\n0,a,1.0\n"


def test_the_same_key_and_step_is_written_once_even_by_a_later_process(path):
    file = MetricsFile(path)
    file.append({"test/auroc": 0.7}, 5)
    file.append({"test/auroc": 0.7, "test/loss": 0.3}, 5)
    MetricsFile(path).append({"test/auroc": 0.7, "val/auroc": 0.6}, 5)
    assert [row[:2] for row in file.rows()] == [(5, "test/auroc"), (5, "test/loss"), (5, "val/auroc")]


def test_rows_since_a_position_leave_out_what_came_before(path):
    file = MetricsFile(path)
    file.append({"a": 1.0}, 0)
    size = file.size()
    file.append({"a": 2.0, "b, c": 3.0}, 1)
    expected = [(0, "a", 1.0), (1, "a", 2.0), (1, "b, c", 3.0)]
    positions = [end for end, _ in file.since(0)]
    assert positions[0] == size
    assert positions[-1] == file.size()
    for number, position in enumerate([0, *positions]):
        assert [row for _, row in file.since(position)] == expected[number:]


def test_a_row_that_is_being_written_is_read_when_it_is_complete(path):
    file = MetricsFile(path)
    file.append({"a": 1.0}, 0)
    size = file.size()
    with path.open("ab") as writer:
        writer.write(b"1,a,2")
        writer.flush()
        assert list(file.since(size)) == []
        writer.write(b".5\n")
    assert list(file.since(size)) == [(size + len("1,a,2.5\n"), (1, "a", 2.5))]


def test_rows_are_counted_whatever_is_in_them(path):
    file = MetricsFile(path)
    assert file.count_since(0) == 0
    file.append({"a": 1.0, "b": 2.0}, 0)
    size = file.size()
    with path.open("a") as writer:
        writer.write("somebody's own line\n1,a,2")
    assert (file.count_since(0), file.count_since(size)) == (3, 1)


def test_what_is_no_number_is_refused_and_nothing_is_written(path):
    file = MetricsFile(path)
    with pytest.raises(ValueError, match="high"):
        file.append({"auroc": 0.5, "loss": "high"}, 0)
    assert list(file.rows()) == []


@pytest.mark.parametrize("line", ["one,a,0.5", "1,a", "1,a,high", "1"])
def test_a_line_that_is_no_row_is_named(path, line):
    MetricsFile(path).append({"a": 1.0}, 0)
    with path.open("a") as file:
        file.write(line + "\n")
    with refused(DataError, "metrics.csv, line 3", "'step,key,value'") as error:
        list(MetricsFile(path).rows())
    assert repr(line) in str(error.value)
    with refused(DataError, "metrics.csv, line 3"):
        list(MetricsFile(path).since(len("step,key,value\n")))
    before = path.read_bytes()
    with refused(DataError, "line 3"):
        MetricsFile(path).truncate(0)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["metrics.csv"]


def test_another_file_is_not_taken_for_metrics(path):
    path.parent.mkdir()
    path.write_text("Image Index,Finding Labels\n")
    with refused(DataError, "line 1"):
        list(MetricsFile(path).rows())


def test_a_result_keeps_infinite_and_undefined_values(tmp_path):
    """A run that diverges ends with an infinite loss, and JSON has no number for it."""
    Result(1, 1, 1.0, {"loss": math.inf, "gap": -math.inf, "auroc": math.nan, "n": 2.5}).write(tmp_path)
    found = Result.read(tmp_path).metrics
    assert (found["loss"], found["gap"], found["n"]) == (math.inf, -math.inf, 2.5)
    assert math.isnan(found["auroc"])
