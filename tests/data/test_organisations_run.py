"""Organisations in a run: classes.csv, YAML, and the files that the run leaves."""

import warnings

import pandas as pd
import pytest
import yaml
from hospital_source import Source, make_records, ready
from runs import Place
from two_organisations import both, chexpert, nih

from fedlit.cli.main import parse
from fedlit.data import ByOrganisation, ByPatient
from fedlit.data.labels import harmonised_names
from fedlit.data.organisations import Organisations, save_classes
from fedlit.experiment.options import resolved


def saved_classes(data: Organisations, folder) -> pd.DataFrame:
    save_classes(ready(data), folder / "classes.csv")
    return pd.read_csv(folder / "classes.csv")


def test_the_label_that_a_class_comes_from_is_saved(roots, tmp_path):
    water = {"Water": {"any": ["Edema", "Effusion"]}, "Mass": "Mass"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = both(roots, {"NIH": nih(roots, names=water), "CheXpert": chexpert(roots, classes=["Fracture"])})
    assert saved_classes(data, tmp_path).values.tolist() == [
        ["CheXpert", "Fracture", "Fracture"],
        ["NIH", "Mass", "Mass"],
        ["NIH", "Water", "Edema any Effusion"],
    ]
    table = saved_classes(both(roots), tmp_path).set_index(["client", "class"])["label"]
    assert len(table) == 14 + 13
    assert table["NIH", "Pleural Effusion"] == "Effusion"
    assert table["CheXpert", "Pleural Effusion"] == "Pleural Effusion"


def test_clients_that_are_no_organisation_say_what_each_organisation_calls_a_class(roots, tmp_path):
    table = saved_classes(both(roots, partition=ByPatient(2)), tmp_path).set_index(["client", "class"])["label"]
    assert len(table) == 2 * 20
    assert table["client-01", "Pleural Effusion"] == "CheXpert: Pleural Effusion; NIH: Effusion"
    assert table["client-02", "Pleural Thickening"] == "Pleural_Thickening"
    assert table["client-02", "Edema"] == "Edema"


def test_the_classes_of_one_source_are_saved_too(roots, tmp_path):
    data = nih(roots, partition=ByOrganisation(), image_size=16, cache_dir=str(roots["cache"]))
    table = saved_classes(data, tmp_path).set_index("class")["label"]
    assert table["Pleural Thickening"] == "Pleural_Thickening"
    own = saved_classes(Source(str(tmp_path), ByOrganisation()), tmp_path)
    assert own["label"].tolist() == own["class"].tolist()
    assert own["class"].tolist() == ["Effusion", "Mass", "Mass", "Edema", *make_records(str(tmp_path)).classes]


# From YAML


def config(roots) -> dict:
    sources = {
        "NIH": {"class_path": "NIHChestXray14", "init_args": {"root": str(roots["NIH"]), "names": "harmonised"}},
        "CheXpert": {
            "class_path": "CheXpert",
            "init_args": {
                "root": str(roots["CheXpert"]),
                "names": "harmonised",
                "uncertain": {"Edema": "ones", "default": "ignore"},
            },
        },
    }
    phantom = {"class_path": "PhantomCXR", "init_args": {"hospitals": 1, "images": 40}}
    init_args = {
        "sources": sources,
        "external": {"Phantom": phantom},
        "image_size": 32,
        "batch_size": 8,
        "cache_dir": str(roots["cache"]),
    }
    return {
        "data": {"class_path": "Organisations", "init_args": init_args},
        "model": {"class_path": "ImageClassifier", "init_args": {"backbone": "small_cnn"}},
        "federation": {"rounds": 1, "aggregators": [{"class_path": "SurgicalHeads"}]},
    }


def test_it_is_configured_by_yaml_and_survives_a_round_trip(roots, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config(roots), sort_keys=False))
    args, parser = parse(
        ["fit", "--config", str(path), "--data.classes", "shared", "--data.partition", "ByOrganisation"]
    )
    path.write_text(resolved(args.fit, parser))
    again, parser = parse(["fit", "--config", str(path)])
    data = ready(parser.instantiate(again.fit).data)
    assert set(data.classes) == set(harmonised_names("NIH")) & set(harmonised_names("CheXpert"))
    assert list(data.sources) == ["CheXpert", "NIH"]
    assert data.sources["CheXpert"].uncertain["Edema"] == "ones"
    assert list(data.test_sets) == ["Phantom"]
    assert data.clients["NIH"].train.batch([0])[0].shape == (1, 1, 32, 32)


@pytest.mark.slow
def test_surgical_heads_on_both_and_what_the_run_leaves(roots, tmp_path):
    told = config(roots)
    # A curve is drawn for each class and test set, so there are few classes.
    classes = ["Cardiomegaly", "Hernia", "Pleural Effusion", "Support Devices"]
    told["data"]["init_args"] |= {"classes": classes}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(told, sort_keys=False))
    place = Place(tmp_path, f"--config {tmp_path / 'config.yaml'} --name one")
    command = place.fit()
    assert command.wait(120) == 0, command.output
    assert "20 of 50 images of CheXpert are lateral and left out" in command.output
    run = place.run("one").path
    assert pd.read_csv(run / "classes.csv").values.tolist() == [
        ["CheXpert", "Cardiomegaly", "Cardiomegaly"],
        ["CheXpert", "Pleural Effusion", "Pleural Effusion"],
        ["CheXpert", "Support Devices", "Support Devices"],
        ["NIH", "Cardiomegaly", "Cardiomegaly"],
        ["NIH", "Hernia", "Hernia"],
        ["NIH", "Pleural Effusion", "Effusion"],
    ]
    assert set(pd.read_csv(run / "partition.csv")["client"]) == {"NIH", "CheXpert"}
