"""Measure images decoded per second, by format and by number of threads and processes.

    python tests/benchmarks/decoding.py FOLDER [--count 48]

FOLDER contains real X-rays, ``images/*.png``. They are enlarged with some noise, saved in each format, and decoded to
224 x 224 pixels in one thread, two threads and two processes, alternately. DICOM needs the extra ``dicom``.
"""

import argparse
import io
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from fedlit.data.pictures import pixels

SIZE, TURNS = 224, 3


def enlarged(image: Image.Image, size: int, scale: int = 1) -> np.ndarray:
    """Return an image of size x size with the noise of a detector."""
    large = np.asarray(image.resize((size, size), Image.Resampling.BICUBIC), dtype=np.float32)
    noisy = np.clip(large + np.random.default_rng(0).normal(0, 2, large.shape), 0, 255) * scale
    return noisy.astype(np.uint8 if scale == 1 else np.uint16)


def png(image: Image.Image, file: Path) -> None:
    """Save a PNG of 8 bits, 1024 x 1024, as in NIH."""
    Image.fromarray(enlarged(image, 1024)).save(file)


def jpeg(image: Image.Image, file: Path) -> None:
    """Save a JPEG of 3000 x 3000, as in MIMIC-CXR-JPG."""
    Image.fromarray(enlarged(image, 3000)).save(file, "JPEG", quality=90)


def deep(image: Image.Image, file: Path) -> None:
    """Save a PNG of 16 bits, 2048 x 2048, as in PadChest."""
    Image.fromarray(enlarged(image, 2048, 256)).save(file, "PNG")


def dicom(image: Image.Image, file: Path) -> None:
    """Save lossless JPEG 2000 of 12 bits, 2048 x 2048, as in VinDr-CXR."""
    import pydicom

    stream = io.BytesIO()
    Image.fromarray(enlarged(image, 2048, 16)).save(stream, "JPEG2000", irreversible=False, no_jp2=True)
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = pydicom.uid.JPEG2000Lossless, "1.2.840.10008.5.1.4.1.1.1.1"
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    data = pydicom.dataset.FileDataset(str(file), {}, file_meta=meta, preamble=b"\0" * 128)
    data.Rows = data.Columns = 2048
    data.SamplesPerPixel, data.PhotometricInterpretation, data.PixelRepresentation = 1, "MONOCHROME2", 0
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 16, 15
    data.WindowCenter, data.WindowWidth = 2048, 4096
    data.PixelData = pydicom.encaps.encapsulate([stream.getvalue()])
    pydicom.dcmwrite(file, data, enforce_file_format=True)


KINDS: dict[str, tuple[str, Callable[[Image.Image, Path], None]]] = {
    "PNG, 8 bits, 1024": (".png", png), "JPEG, 3000": (".jpg", jpeg), "PNG, 16 bits, 2048": (".png", deep),
    "DICOM, JPEG 2000, 2048": (".dcm", dicom),
}  # fmt: skip


def decode(file: Path) -> int:
    """Decode an image."""
    return int(pixels.read_image(file, SIZE).sum())


def rates(files: list[Path]) -> dict[str, float]:
    """Return the median number of images per second in each way, measured alternately."""
    speeds: dict[str, list[float]] = {}
    context = multiprocessing.get_context("forkserver")
    with (
        ThreadPoolExecutor(1) as one,
        ThreadPoolExecutor(2) as two,
        ProcessPoolExecutor(2, mp_context=context) as processes,
    ):
        ways = {"1 thread": one, "2 threads": two, "2 processes": processes}
        list(processes.map(decode, files[:4]))
        for _ in range(TURNS):
            for name, pool in ways.items():
                began = time.perf_counter()
                list(pool.map(decode, files))
                speeds.setdefault(name, []).append(len(files) / (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in speeds.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=48, help="files of each format")
    args = parser.parse_args()
    images = [Image.open(file).convert("L") for file in sorted((args.folder / "images").glob("*.png"))[: args.count]]
    for name, (suffix, save) in KINDS.items():
        with TemporaryDirectory() as folder:
            files = [Path(folder) / f"{number}{suffix}" for number in range(len(images))]
            for image, file in zip(images, files, strict=True):
                save(image, file)
            shown = ", ".join(f"{way} {rate:.1f}/s" for way, rate in rates(files).items())
            print(f"{name} ({files[0].stat().st_size / 1e6:.1f} MB): {shown}", flush=True)


if __name__ == "__main__":
    main()
