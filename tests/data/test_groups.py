"""Groups of images: ages and their bands, words, mistakes, and what each data set gives."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import own_tables
import pandas as pd
import pytest
import small_chexpert
import small_mimic
import small_nih
import small_padchest
import small_vindr
import yaml
from dicom_files import write_dicom
from edits import replace_in
from hospital_source import make_records
from own_tables import people, write_table
from refusals import refused, table

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data import MIMICCXR, ByPatient, CheXpert, ImageTable, NIHChestXray14, Organisations, PadChest, VinDrCXR
from fedlit.data.clients import group_counts
from fedlit.data.groups import GroupColumn, group_columns
from fedlit.data.records import check_records

FILE = Path("ours.csv")


def read(column: GroupColumn, *cells) -> list[str]:
    return column.read(pd.Series(cells), FILE, np.array([f"line {row + 2}" for row in range(len(cells))]))[0].tolist()


def column(name: str, **bands) -> GroupColumn:
    return group_columns([name], bands, {})[0]


class TestCells:
    def test_ages_in_all_units_are_banded_in_years(self):
        cells = ["058Y", 58, 58.0, "17,9", "18", "090D", "052W", "215M", "217M", ">89", "90+", "39.9", "064y"]
        bands = ["40-64", "40-64", "40-64", "0-17", "18-39", "0-17", "0-17", "0-17", "18-39", "65+", "65+", "18-39"]
        assert read(column("age"), *cells) == [*bands, "40-64"]

    def test_impossible_and_missing_ages_are_unknown_and_counted(self):
        cells = pd.Series([411, -1, None, np.nan, "", "unknown", "n/a", 30, 50])
        groups, notes = column("age").read(cells, FILE, np.arange(9).astype(str))
        assert groups.tolist() == [*[""] * 7, "18-39", "40-64"]
        assert notes == [
            "group 'age' is unknown for 7 of 9 images, 2 of them because of an impossible age (column 'age')"
        ]

    def test_bands_of_other_numbers(self):
        assert read(column("BMI", BMI=[18.5, 25, 30]), 16, 18.5, 24.9, 25, 29.9, 30, "") == [
            "<18.5", "18.5-<25", "18.5-<25", "25-29", "25-29", "30+", "",
        ]  # fmt: skip
        assert read(column("age", age=[1, 2, 18]), 0, 1, 2, 17, 18) == ["0", "1", "2-17", "2-17", "18+"]

    def test_words_stay_and_sexes_have_one_spelling(self):
        assert read(column("Sex"), "F", "female", " M ", "Male", "diverse", "U", None) == [
            "female", "female", "male", "male", "diverse", "", "",
        ]  # fmt: skip
        assert read(column("scanner"), "A  B", "C", 1.5, 3.0) == ["A B", "C", "1.5", "3"]

    def test_names_that_all_data_sets_share_are_in_lower_case(self):
        asked = group_columns(["Age", "Site of care"], None, {})
        assert [(group.name, group.column) for group in asked] == [("age", "Age"), ("Site of care", "Site of care")]
        (mapped,) = group_columns({"sex": "Geschlecht"}, None, {})
        assert (mapped.name, mapped.column) == ("sex", "Geschlecht")


def cells(name: str, *of: object, **bands: list[float]):
    return lambda _: read(column(name, **bands), *of)


def columns(groups, bands=None):
    return lambda _: group_columns(groups, bands, {})


def records(groups: dict, count: int = 20):
    return lambda folder: check_records(replace(make_records(folder, count), groups=groups))


@table([
    ("an age in words", cells("age", 40, "old", 50, "adult"), DataError, "ours.csv", "column 'age', line 3", "'old'"),
    ("months of no age", cells("BMI", "12M", BMI=[25]), DataError, "line 2", "a number", "'BMI'", "'12M'"),
    ("nothing known", cells("sex", "", None, "unknown"), DataError, "ours.csv", "column 'sex'", "found 0"),
    ("too many groups", cells("BMI", *range(51)), DataError, "BMI", "found 51"),
    ("edges that descend", columns(["age"], {"age": [65, 18]}), DataError, "data.bands: age", "found [65.0, 18.0]"),
    ("no edges", columns(["age"], {"age": []}), DataError, "found []"),
    ("an edge of NaN", columns(["x"], {"x": [1, float("nan")]}), DataError, "nan"),
    ("an impossible age", columns(["age"], {"age": [18, 411]}), DataError, "120 years", "411"),
    ("bands of another group", columns(["sex"], {"sxe": [1]}), DataError, "data.bands", "'sxe'", "names are sex"),
    ("bands without groups", columns(None, {"age": [1]}), DataError, "'age'", "data.groups is empty"),
    ("a group twice", columns(["Sex", "sex"]), DataError, "data.groups", "'sex'"),
    ("too few values", records({"sex": ["f"] * 3}), DataError, "group 'sex'", "20 values", "found 3"),
    ("a text for values", records({"sex": "f"}), DataError, "group 'sex'", "20 values", "found 'f'"),
    ("a group without a name", records({"": ["f"] * 20}), DataError, "found ''"),
    ("a group per image", records({"id": list(range(60))}, 60), DataError, "most 50 groups, found 60"),
])  # fmt: skip
def test_it_is_refused(provoke, kind, names, tmp_path):
    with refused(kind, *names):
        provoke(tmp_path)


def test_groups_without_a_comparison_are_a_warning(recwarn):
    read(column("age"), 50, 90)
    assert not recwarn.list
    with pytest.warns(UserWarning, match="ours.csv: column 'scanner': expected several groups .* only 'Siemens'"):
        read(column("scanner"), "Siemens", "Siemens", "")
    with pytest.warns(UserWarning, match="edges of data.bands between 30 and 90, found 10, 30, 100 for 'age'"):
        read(column("age", age=[10, 30, 60, 100]), 30, 90, "")


def test_records_of_a_custom_class_may_leave_groups_unknown(tmp_path):
    given = {"sex": np.array(["f", None, np.nan, "unknown"] * 5, dtype=object)}
    checked = check_records(replace(make_records(tmp_path, 20), groups=given))
    assert checked.groups["sex"].tolist() == ["f", "", "", ""] * 5


def opened(kind: type, root: Path, **arguments):
    return kind(root, image_size=16, cache_dir=str(root.parent / "cache"), **arguments)


@pytest.mark.filterwarnings("ignore:.*expected several groups")
class TestDataSets:
    @pytest.mark.parametrize("version", ["v1", "sex"])
    def test_nih(self, tmp_path, version):
        root = small_nih.write_folder(tmp_path / "nih", version)
        file = next(root.glob("Data_Entry*.csv"))
        replace_in(file, ",30,F,PA", ",058Y,M,PA")
        replace_in(file, ",49,F,", ",411,F,")
        groups = opened(NIHChestXray14, root, groups=["sex", "age", "view"]).read_within().groups
        assert groups["sex"][:4].tolist() == ["male", "female", "female", "female"]
        assert groups["age"].tolist() == ["40-64", *["18-39"] * 29, *["40-64"] * 27, "", *["40-64"] * 2]
        assert groups["view"][:3].tolist() == ["PA", "PA", "AP"]
        with refused(DataError, f"data.groups: {file}", "sex, age, view", "'scanner'"):
            opened(NIHChestXray14, root, groups=["scanner"]).read_within()

    def test_chexpert_has_lateral_views_and_no_age_of_zero(self, tmp_path):
        root = small_chexpert.write_folder(tmp_path / "chexpert", test=True)
        replace_in(root / "train.csv", "view1_frontal.jpg,Female,68", "view1_frontal.jpg,Unknown,0")
        data = opened(CheXpert, root, groups=["sex", "age", "view"], views=("frontal", "lateral"))
        groups = data.read_within().groups
        assert {name: of[:3].tolist() for name, of in groups.items()} == {
            "sex": ["", "female", "female"], "age": ["", "65+", "65+"], "view": ["AP", "lateral", "AP"],
        }  # fmt: skip
        assert {name: of[-1] for name, of in groups.items()} == {"sex": "", "age": "", "view": "frontal"}
        records = opened(CheXpert, root, groups=["view"], upsample=["Cardiomegaly"]).records()
        assert len(records.groups["view"]) == len(records.names) > 30

    def test_mimic_takes_sex_and_age_from_the_patients(self, tmp_path):
        root = small_mimic.write_folder(tmp_path / "mimic", packed=False)
        with refused(MissingFileError, root, "data.groups: sex", "patients.csv.gz"):
            opened(MIMICCXR, root, groups=["sex"]).read_within()
        file = root / "mimic-cxr-2.0.0-metadata.csv"
        rows = pd.read_csv(file, dtype=str).assign(StudyDate="21800506")
        rows.to_csv(file, index=False)
        (root / "hosp").mkdir()
        people = rows["subject_id"].unique()[1:]  # the first is not there
        lines = [f"{who},{'FM'[row % 2]},{30 + 2 * row},2170,x," for row, who in enumerate(people)]
        header = "subject_id,gender,anchor_age,anchor_year,anchor_year_group,dod"
        (root / "hosp" / "patients.csv").write_text("\n".join([header, *lines]) + "\n")
        reading = opened(MIMICCXR, root, groups=["sex", "age", "view"]).read_within()
        of = dict(zip(reading.patients, zip(*reading.groups.values(), strict=True), strict=True))
        first, second, third = (of[who] for who in rows["subject_id"].unique()[:3])
        assert first[:2] == ("", "")
        assert second[:2] == ("female", "40-64")  # 30 in 2170, and so 40 in 2180
        assert third[:2] == ("male", "40-64")
        assert {of[2] for of in of.values()} == {"PA", "AP"}
        assert any("group 'sex' is unknown for" in note and "'gender'" in note for note in reading.notes)

    def test_padchest_takes_an_age_from_two_years(self, tmp_path):
        root = small_padchest.write_folder(tmp_path / "padchest")
        file = root / small_padchest.FILE
        rows = pd.read_csv(file, dtype=str)
        sexes = np.where(rows.index % 4 < 2, "M", "F")
        rows.assign(StudyDate_DICOM="20140915", PatientSex_DICOM=sexes).to_csv(file, index=False)
        groups = opened(PadChest, root, groups=["sex", "age", "view", "scanner"]).read_within().groups
        assert [of[0] for of in groups.values()] == ["male", "65+", "PA", "PhilipsMedicalSystems"]  # born in 1930
        assert groups["age"][-1] == "40-64"
        assert groups["scanner"][2] == "ImagingDynamicsCompanyLtd"

    def test_vindr_reads_the_headers_of_dicom_files(self, tmp_path):
        root = small_vindr.write_folder(tmp_path / "vindr")
        with refused(DataError, root, "data.groups", "sex"):
            opened(VinDrCXR, root, groups=["sex"]).read_within()
        for row, (sex, age) in enumerate((("F", "058Y"), ("M", "000Y"), (None, None))):
            (root / "train" / f"{small_vindr.image_id(row)}.png").unlink()
            pixels = np.full((4, 4), 9, np.uint8)
            write_dicom(root / "train" / f"{small_vindr.image_id(row)}.dicom", pixels, PatientSex=sex, PatientAge=age)
        (root / "train" / f"{small_vindr.image_id(3)}.png").unlink()
        (root / "train" / f"{small_vindr.image_id(3)}.dicom").write_bytes(b"damaged")
        with pytest.warns(UserWarning, match="expected several groups for 'age', found only '40-64'"):
            groups = opened(VinDrCXR, root, groups=["sex", "age"]).read_within().groups
        assert groups["sex"][:5].tolist() == ["female", "male", "", "", ""]
        assert groups["age"][:5].tolist() == ["40-64", "", "", "", ""]


SEX = ["F", "M"] * 20
AGE = [str(20 + row) for row in range(40)]


class TestImageTable:
    def table(self, root: Path, **columns) -> Path:
        return write_table(root, people(40, Sex=SEX, Alter=AGE, **columns))

    def test_groups_reach_every_part_of_every_client_in_its_order(self, tmp_path):
        groups = {"sex": "Sex", "age": "Alter"}
        data = own_tables.opened(self.table(tmp_path), groups=groups, bands={"age": [30, 50]}, partition=ByPatient(2))
        data.setup()
        seen = 0
        for client in data.clients.values():
            for part in (client.train, client.val, client.test):
                for name, sex, age in zip(part.names, *part.groups.values(), strict=True):
                    row, seen = int(name.removesuffix(".png")), seen + 1
                    assert sex == ("female", "male")[row % 2]
                    assert age == ("0-29" if row < 10 else "30-49" if row < 30 else "50+")
        assert seen == 40
        everything = group_counts(data.clients.values(), {})
        counts = everything.groupby(["group", "value"])["images"].sum()
        assert counts["sex"].tolist() == [20, 20]
        assert counts["age"].to_dict() == {"0-29": 10, "30-49": 20, "50+": 10}
        # The two images of a patient differ in their sex here, so each patient counts in both groups.
        assert everything[everything["group"] == "sex"]["patients"].sum() == 40

    def test_a_column_that_does_not_exist_and_a_wrong_age_are_named(self, tmp_path):
        table = self.table(tmp_path)
        with refused(DataError, "ours.csv", "'sex'", "similar names are Sex"):
            own_tables.opened(table, groups=["sex"]).read_within()
        replace_in(table, ",27\n", ",grown\n")
        with refused(DataError, "ours.csv", "column 'Alter', line 9", "an age", "'grown'"):
            own_tables.opened(table, groups={"age": "Alter"}).read_within()

    def test_images_that_are_left_out_take_their_groups_with_them(self, tmp_path):
        table = self.table(tmp_path)
        (tmp_path / "0.png").unlink()
        with pytest.warns(UserWarning, match="missing"):
            records = own_tables.opened(table, groups=["Sex"], missing="drop").records()
        assert records.groups["sex"].tolist() == [{"F": "female", "M": "male"}[cell] for cell in SEX[1:]]


def test_patients_that_are_not_known_are_not_counted():
    part = SimpleNamespace(groups={"sex": np.array(["f", "m", "f"])}, patients=np.full(3, ""))
    counts = group_counts([], {"outer": part})
    assert counts["images"].tolist() == [2, 1]
    assert counts["patients"].isna().all()
    assert counts["split"].tolist() == ["outer", "outer"]


def test_organisations_join_the_groups_of_all_sources(tmp_path):
    nih = opened(NIHChestXray14, small_nih.write_folder(tmp_path / "nih", patients=5), groups=["view"])
    padchest = small_padchest.write_folder(tmp_path / "padchest", patients=6)
    spanish = opened(
        PadChest, padchest, groups=["view", "scanner"], depth=12, names={"Hernia": "hernia", "Mass": "mass"}
    )
    data = Organisations({"NIH": nih, "Spain": spanish}, image_size=16, cache_dir=str(tmp_path / "cache"))
    records = data.records()
    here = records.sites == "NIH"
    assert set(records.groups["view"][here]) == {"PA", "AP"}
    assert set(records.groups["view"][~here]) == {"PA", "AP", "AP_horizontal"}
    assert set(records.groups["scanner"][here]) == {""}
    assert "" not in records.groups["scanner"][~here]
    assert "group 'scanner' is unknown for all images of 'NIH'" in data.notes


def test_the_manual_reads_the_table_that_it_describes(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "fedlit" / "data" / "README.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text[text.index("## Groups") :].partition("\n## ")[0], re.DOTALL)
    arguments = yaml.safe_load(block)["data"]["init_args"]
    root = tmp_path / "images"
    columns = people(40, Sex=SEX, Age=AGE, Scanner=["one", "other"] * 20)
    columns = {"path": columns.pop("file"), **columns}
    write_table(root, columns, file="path").rename(tmp_path / "cases.csv")
    monkeypatch.chdir(tmp_path)
    data = ImageTable(**arguments, image_size=16, cache_dir="cache")
    groups = data.read_within().groups
    assert {name: sorted(set(of)) for name, of in groups.items()} == {
        "sex": ["female", "male"], "age": ["0-29", "30-49", "50+"], "scanner": ["one", "other"],
    }  # fmt: skip
