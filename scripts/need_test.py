"""What scripts/need says of machines that lack something."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
NEED = Path(__file__).with_name("need")
ROOT = NEED.parent.parent
# What there is on every machine, and then programs that say what they are asked for.
THERE = ("sh", "sed")
PROGRAMS = {"cargo": "echo cargo 1.89.0", "rustc": ":", "cc": ":", "make": ":", "python3": ":"}


def said(below="", **changed):
    """What it says where these programs are others, or, as None, not there; and its exit code. `below`: run from such a folder."""
    with tempfile.TemporaryDirectory() as folder:
        for name in THERE:
            found = next(p for p in ("/bin", "/usr/bin") if os.path.exists(f"{p}/{name}"))
            os.symlink(f"{found}/{name}", f"{folder}/{name}")
        for name, script in {**PROGRAMS, **changed}.items():
            if script is not None:
                path = Path(folder, name)
                path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
                path.chmod(0o755)
        clone = Path(folder, below)
        clone.mkdir(exist_ok=True)
        done = subprocess.run([f"{folder}/sh", NEED], env={"PATH": folder}, cwd=clone if below else "/", capture_output=True, text=True, check=False)
        return done.stderr.removeprefix("missing on this machine, please install: "), done.returncode


class Need(unittest.TestCase):
    def test_nothing(self):
        self.assertEqual(said(), ("", 0))

    def test_each(self):
        rust = "Rust (cargo and rustc, 1.89 or later)\n"
        for changed, words in (
            ({"cargo": None}, rust), ({"rustc": None}, rust), ({"cargo": "echo cargo 1.65.0"}, rust), ({"cargo": "exit 1"}, rust),
            ({"cc": None}, "gcc\n"), ({"cc": "exit 1"}, "the headers of the C library (libc6-dev)\n"),
            ({"make": None}, "make\n"), ({"python3": None}, "python3 (3.11 or later)\n"), ({"python3": "exit 1"}, "python3 (3.11 or later)\n"),
        ):
            self.assertEqual(said(**changed), (words, 1), changed)

    def test_a_space_in_the_path(self):
        self.assertEqual(said(below="a clone"), ("the clone is in a folder with a space in its path, where the extension cannot be built: please move it\n", 1))

    def test_all_in_one_sentence(self):
        self.assertEqual(said(**dict.fromkeys(PROGRAMS)),
                         ("Rust (cargo and rustc, 1.89 or later), gcc, make, python3 (3.11 or later)\n", 1))

    def test_one_version_of_rust_everywhere(self):
        """What pages say is what Cargo.toml says."""
        version = re.search(r'^rust-version = "(.+)"$', (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.M)[1]
        pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), NEED]
        told = {page.name: found for page in pages if (found := re.findall(r"(?:Rust|rustc,)\s+(1\.\d+)", page.read_text(encoding="utf-8")))}
        self.assertLessEqual({"README.md", "development.md", "extension.md", "need"}, told.keys())
        self.assertEqual({name: set(found) for name, found in told.items()}, {name: {version} for name in told})


if __name__ == "__main__":
    unittest.main()
