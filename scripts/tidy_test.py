"""The rules of scripts/tidy catch what they are there for, and nothing else."""

import importlib.machinery
import importlib.util
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("tidy", str(Path(__file__).with_name("tidy")))
tidy = importlib.util.module_from_spec(importlib.util.spec_from_loader("tidy", LOADER))
LOADER.exec_module(tidy)


def breaches(name, text):
    return [what for _, what in tidy.check_file(Path(name), text)]


class Rules(unittest.TestCase):
    def test_long_rust_function(self):
        body = '    let _ = "}";  // }\n' * 69
        self.assertEqual(breaches("crates/cli/src/a.rs", "fn a(x: [u8; 2]) {\n" + body + "}\n")[0],
                         "function a has 71 lines, at most 70")
        self.assertEqual(breaches("crates/cli/src/a.rs", "fn a() {\n" + body[23:] + "}\n"), [])

    def test_rust_lifetimes_are_no_characters(self):
        text = "fn a<'a>(x: &'a str) -> &'a str {\n    x\n}\nfn b() -> char {\n    '{'\n}\n"
        found = list(tidy.rust_functions(tidy.blanked(text, ".rs")))
        self.assertEqual(found, [("a", 1, 3), ("b", 4, 3)])

    def test_long_c_function(self):
        body = "\tx++;\n" * 70
        text = "struct s {\n" + body + "};\nint\nf(int (*g) (int), int x)\n{\n" + body + "}\n"
        self.assertEqual(breaches("ext/a.c", text), ["function f has 72 lines, at most 70"])

    def test_vague_names(self):
        for name, found in (("put", ["function put: the name must say of what"]), ("put_row", [])):
            self.assertEqual(breaches("ext/a.c", f"static void\n{name}(int x)\n{{\n}}\n"), found)

    def test_long_file(self):
        self.assertEqual(breaches("crates/cli/src/a.rs", "//\n" * 501), ["501 lines, at most 500"])
        self.assertEqual(breaches("ext/a.c", "//\n" * 1201), ["1201 lines, at most 1200"])
        self.assertEqual(breaches("ext/a.h", "//\n" * 1200), [])
        self.assertEqual(breaches("docs/a.md", "x\n" * 501), [])

    def test_core_is_pure(self):
        for text in ["use std::fs;\n", "use std::{fmt, time::Instant};\n", "fn a() { std::thread::yield_now() }\n"]:
            self.assertEqual(len(breaches("crates/core/src/a.rs", text)), 1, text)
            self.assertEqual(breaches("crates/engine/src/a.rs", text), [], text)
        self.assertEqual(breaches("crates/core/src/a.rs", "// std::fs\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n"), [])

    def test_libraries_do_not_print(self):
        self.assertEqual(len(breaches("crates/engine/src/a.rs", 'fn a() { println!("") }\n')), 1)
        self.assertEqual(breaches("crates/cli/src/a.rs", 'fn a() { println!("") }\n'), [])

    def test_libraries_name_no_options(self):
        for text, found in (('"use --truncate"', 1), ('"--where is"', 1), ('"`truncate` empties it"', 0), ('"a--b"', 0)):
            source = f"fn a() -> &'static str {{\n    {text}\n}}\n"
            self.assertEqual(len(breaches("crates/engine/src/a.rs", source)), found, text)
            self.assertEqual(breaches("crates/cli/src/a.rs", source), [])
        tests = '#[cfg(test)]\nmod tests {\n    const A: &str = "x --a";\n}\n'
        self.assertEqual(breaches("crates/engine/src/a.rs", tests), [])

    def test_arrows_in_the_engine(self):
        for name, used, found in (("plan", "session::conn", 1), ("plan/locks", "facts", 0), ("session/lane", "plan", 0),
                                  ("session/lane", "load", 1), ("load", "maintenance", 0), ("wire", "{facts, session}", 1)):
            text = f"use crate::{used}::A;\n"
            self.assertEqual(len(breaches(f"crates/engine/src/{name}.rs", text)), found, text)
        self.assertEqual(breaches("crates/engine/src/plan.rs", "#[cfg(test)]\nmod tests {\n    use crate::session::A;\n}\n"), [])

    def test_rust_calls_no_postgres(self):
        self.assertEqual(len(breaches("ext/ffi/src/a.rs", 'extern "C" {\n    fn palloc();\n}\n')), 1)
        self.assertEqual(breaches("ext/ffi/src/a.rs", 'pub extern "C" fn begin() {}\n'), [])

    def test_versions_in_one_place(self):
        text = "#if PG_VERSION_NUM >= 160000\n#endif\n"
        self.assertEqual(len(breaches("ext/copy/copy.c", text)), 1)
        self.assertEqual(breaches("ext/compat/compat.h", text), [])
        for text in ("#ifdef BGWORKER_FLAG\n#endif\n", "#ifndef INVALID_PROC_NUMBER\n#endif\n", "#if defined(USE_X) && 1\n#endif\n"):
            self.assertEqual(breaches("ext/copy/copy.c", text), ["what a version of the server has is asked in ext/compat/ alone"])
            self.assertEqual(breaches("ext/compat/nbtree.h", text), [])
        self.assertEqual(breaches("ext/copy/copy.c", "#ifdef USE_ASSERT_CHECKING\n#endif\n"), [])
        self.assertEqual(breaches("ext/base/load.h", "#ifndef PGSLUICE_LOAD_H\n#define PGSLUICE_LOAD_H\n#endif\n"), [])

    def test_subtransactions_in_one_place(self):
        text = "void\nf(void)\n{\n\tBeginInternalSubTransaction(NULL);\n}\n"
        self.assertEqual(breaches("ext/copy/copy.c", text), ["internal subtransactions begin in ext/base/subtransaction.c alone"])
        self.assertEqual(breaches("ext/base/subtransaction.c", text), [])
        self.assertEqual(breaches("ext/copy/copy.c", "/* BeginInternalSubTransaction */\n"), [])

    def rooms(self, **files):
        return [what for _, _, what in tidy.rooms({Path("ext") / name.replace("__", "/").replace("_h", ".h").replace("_c", ".c"): text
                                                   for name, text in files.items()})]

    def test_rooms(self):
        heap = {"heap__heap_h": "extern void sluice_f(int x);\nextern int\tsluice_v;\n", "heap__heap_c": "int\t\t\tsluice_v = 1;\n\nvoid\nsluice_f(int x)\n{\n}\n"}
        self.assertEqual(self.rooms(**heap, copy__copy_c='#include "heap/heap.h"\nvoid\ng(void)\n{\n\tsluice_f(sluice_v);\n}\n'), [])
        self.assertEqual(self.rooms(**heap, base__a_c="/* sluice_f() */\nvoid\ng(void)\n{\n\tsluice_f(sluice_v);\n}\n"),
                         ["uses sluice_f of ext/heap, which is above ext/base", "uses sluice_v of ext/heap, which is above ext/base"])
        self.assertEqual(self.rooms(**heap, base__a_h='#include "heap/heap.h"\n'), ["includes heap/heap.h, which is above ext/base"])
        self.assertEqual(self.rooms(index__build_h="", heap__a_c='#include "index/build.h"\n'), ["includes index/build.h, which is for ext/index alone"])
        self.assertEqual(self.rooms(attic__a_c=""), ["ext/attic is no room: see ext/README.md"])

    def test_rooms_show_little(self):
        most = tidy.ROOMS["copy"]
        for count, found in ((most, []), (most + 1, [f"shows {most + 1} symbols to other files, at most {most}"])):
            names = [f"sluice_f{i}" for i in range(count)]
            self.assertEqual(self.rooms(copy__copy_h="".join(f"extern void {name}(void);\n" for name in names),
                                        copy__copy_c="".join(f"void\n{name}(void)\n{{\n}}\n" for name in names)), found)

    def test_types_that_share_a_name(self):
        def found(**files):
            return [what for _, _, what in tidy.same_names({Path(name.replace("__", "/") + ".rs"): text for name, text in files.items()})]

        one, other = "pub(crate) struct Part;\n", "pub enum Part { A }\n"
        for elsewhere in ("crates__engine__src__b__c", "crates__core__src__a"):
            self.assertEqual(found(**{"bench__src__a": one, elsewhere: other}), ["bench/src/a.rs has a type Part, too: one of them needs another name"])
        # A private type, a test's, a comment, a value of that type, and the arguments of a command.
        self.assertEqual(found(crates__engine__src__a=one, crates__engine__src__b="struct Part;\n// pub struct Part;\npub fn f(_: Part) {}\n"), [])
        self.assertEqual(found(crates__engine__src__a=one, crates__engine__src__b="#[cfg(test)]\nmod tests {\n    pub struct Part;\n}\n"), [])
        self.assertEqual(found(crates__cli__src__commands__a="pub struct Arguments;\n", crates__cli__src__commands__b="pub struct Arguments;\n"), [])

    def test_words_and_blanks(self):
        for text in ["// TODO later\n", "<<<<<<< HEAD\n", ">>>>>>> main\n", "// see /root/x\n", "a \n", "a"]:
            self.assertEqual(len(breaches("docs/a.md", text)), 1, text)
        for text in ["under /var/tmp/x\n", "~/work/x\n", "a/work/x\n"]:
            self.assertEqual(breaches("docs/a.md", text), [], text)
        for text in ["The index is built\nanew.\n", "The reader is told so.\n"]:
            self.assertEqual(len(breaches("docs/a.md", text)), 1, text)
            self.assertEqual(len(breaches("ext/index/a.h", f"/* {text} */\n")), 1, text)
            self.assertEqual(breaches("docs/results.md", text), [], text)


if __name__ == "__main__":
    unittest.main()
