"""A small copy of NIH ChestX-ray14 in its official layout."""

from pathlib import Path

from own_tables import encoded

V2020 = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]"
)
FINDINGS = ("No Finding", "Effusion|Mass", "Hernia", "Pleural_Thickening", "No Finding", "Cardiomegaly")


def write_folder(
    root: Path, version: str = "v2020", layout: str = "one", lists: bool = False, patients: int = 20
) -> Path:
    """A small download: 3 images for each patient, in one folder or in twelve."""
    root.mkdir(parents=True, exist_ok=True)
    rows, names = [], []
    for index in range(3 * patients):
        patient, follow_up = divmod(index, 3)
        name = f"{patient + 1:08d}_{follow_up:03d}.png"
        view = "AP" if follow_up == 2 else "PA"
        finding = FINDINGS[index % len(FINDINGS)]
        rows.append(f"{name},{finding},{follow_up},{patient + 1},{30 + patient},F,{view},2500,2048,0.168,0.168")
        folder = root / "images" if layout == "one" else root / f"images_{index % 12 + 1:03d}" / "images"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(1000 + index, 24, mode="RGBA" if index % 10 == 0 else "L"))
        names.append(name)
    header = V2020.replace("Gender", "Sex") if version == "sex" else V2020
    if version == "v1":
        (root / "Data_Entry_2017.csv").write_text("\n".join(f"{line}," for line in (header, *rows)) + "\n")
    elif version == "ragged":
        (root / "Data_Entry_2017.csv").write_text("\n".join((header, *(f"{row}," for row in rows))) + "\r\n\n")
    else:
        (root / "Data_Entry_2017_v2020.csv").write_text("\ufeff" + "\n".join((header, *rows)), encoding="utf-8")
    if lists:
        cut = 3 * (patients - 5)
        (root / "train_val_list.txt").write_text("\n".join(names[:cut]))
        (root / "test_list.txt").write_text("\n".join(names[cut:]) + "\n")
    return root


def write_ten_labels(root: Path) -> list[str]:
    """Ten images without pixels: one with cardiomegaly and two with effusion, one of these with a mass; their names."""
    (root / "images").mkdir(parents=True)
    findings = ["Cardiomegaly", "Effusion|Mass", "Effusion", *["No Finding"] * 7]
    names = [f"{i:08d}_000.png" for i in range(len(findings))]
    rows = [
        f"{name},{finding},0,{i},50,F,PA,16,16,0.1,0.1"
        for i, (name, finding) in enumerate(zip(names, findings, strict=True))
    ]
    (root / "Data_Entry_2017_v2020.csv").write_text("\n".join([V2020, *rows]) + "\n")
    return names
