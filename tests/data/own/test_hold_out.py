"""Images that are held out stay out, whatever the word for them is."""

import numpy as np
import pytest
from own_tables import data_check, opened, people, write_table
from refusals import refused

from fedlit.core.errors import DataError
from fedlit.data.own.proposal import propose

WORDS = ["train"] * 24 + ["holdout"] * 16


def test_a_word_that_is_not_known_is_refused(tmp_path, fedlit_cli):
    table = write_table(tmp_path, people(split=WORDS))
    code, text = data_check(fedlit_cli, table)
    assert code == 1
    for word in ("split: split", "line 26: column 'split'", "'holdout' (16 such lines)", "data.splits {holdout: test}"):
        assert word in text
    assert "no problems" not in text
    for name in ("Fold", "data_set", "Partition", "subset", "cv_fold", "train_test_split"):
        table.write_text(table.read_text().replace("Edema,split", f"Edema,{name}"))
        assert propose(table).arguments["split"] == name
        table.write_text(table.read_text().replace(f"Edema,{name}", "Edema,split"))


def test_empty_cells_of_a_split_are_refused_unless_they_mean_something(tmp_path, fedlit_cli):
    table = write_table(tmp_path, people(split=[word.replace("train", "") for word in WORDS]))
    code, out, _ = fedlit_cli(f"data check {table}")
    assert code == 1
    assert "split: split" in out
    data = opened(table, split="split", splits={"": "train_val", "holdout": "test"})
    assert data.read().splits.tolist() == ["train_val"] * 24 + ["test"] * 16


def test_one_may_say_what_words_mean(tmp_path, fedlit_cli):
    table = write_table(tmp_path, people(split=WORDS))
    fedlit_cli(f"data check {table} --set '{{splits: {{HoldOut: test}}}}'").succeeded()
    data = opened(table, split="split", splits={"HoldOut": "test", "train": "train_val"})
    data.setup()
    held = data.assignment.query("split == 'test'")
    assert sorted(held["image"]) == sorted(f"{n}.png" for n in range(24, 40))


def test_words_for_numbers_of_a_split_take_no_label_for_one(tmp_path, fedlit_cli):
    table = write_table(tmp_path, people(cv_fold=[str(n // 2 % 4) for n in range(40)]))
    assert "split: cv_fold # 4 different" in " ".join(fedlit_cli(f"data check {table}")[1].split())
    words = "{splits: {0: test, 1: val, 2: train, 3: train}}"
    out = fedlit_cli(f"data check {table} --set '{words}'").succeeded()
    assert "split: cv_fold" in out
    assert "labels: [Edema]" in out


def test_a_column_of_another_kind_is_no_split(tmp_path, fedlit_cli):
    table = write_table(tmp_path, people(set=[f"box {n}" for n in range(40)]))
    assert fedlit_cli(f"data check {table}")[0] == 0
    table = write_table(tmp_path / "b", people(split=WORDS))
    fedlit_cli(f"data check {table} --set '{{split: null}}'").succeeded()


@pytest.mark.parametrize("ids", [["p12", "p13", "14.png"], ["24.png", "25", "p13", "28.png", "29.png"]])
def test_a_list_of_ids_is_the_test_set(tmp_path, ids):
    table = write_table(tmp_path, people())
    (tmp_path / "test.txt").write_text("\n".join([*ids, ""]))
    data = opened(table, test=tmp_path / "test.txt")
    if "14.png" in ids:  # one image of a patient, whose other one would be trained on
        with refused(DataError, "'p7'", "and train_val"):
            data.setup()
        return
    data.setup()
    held = data.assignment.query("split == 'test'")
    assert sorted(held["image"]) == sorted(f"{n}.png" for n in (24, 25, 26, 27, 28, 29))
    assert set(np.unique(data.assignment["split"])) == {"train", "val", "test"}


def test_a_list_comes_before_a_column(tmp_path):
    table = write_table(tmp_path, people(split=["train"] * 20 + ["val"] * 10 + ["test"] * 10))
    (tmp_path / "test.txt").write_text("p1\n")
    data = opened(table, split="split", test=tmp_path / "test.txt")
    data.setup()
    assert (data.assignment["split"] == "test").sum() == 12
    assert "2 images of ours are test by test.txt, and another split by 'split'" in data.notes
