//! Every example of the help, the guide and the README runs as it is, and shells can read their
//! completions.

use crate::common::{each_major, left_out, World};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The commands in the examples of the reference, which is the programs' own help, and in the code
/// of the guide and the README.
fn examples() -> Vec<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let reference = fs::read_to_string(docs.join("reference.md")).unwrap();
    let mut found = Vec::new();
    for block in reference.split("\nExamples:\n").skip(1) {
        let block = block.split("\n```").next().unwrap();
        found.extend(block.lines().filter_map(|l| l.strip_prefix("  ")).map(str::to_owned));
    }
    let mut guides: Vec<_> =
        fs::read_dir(docs.join("guide")).unwrap().map(|e| e.unwrap().path()).collect();
    guides.sort();
    // Its examples build on each other: `values::the_recipes_of_the_guide` runs them.
    guides.retain(|path| !path.ends_with("fields.md"));
    // Its examples need nodes: `nodes::the_examples_of_the_guide_about_nodes_run` runs them.
    guides.retain(|path| !path.ends_with("nodes.md"));
    guides.push(docs.join("../README.md"));
    for guide in guides {
        let text = fs::read_to_string(guide).unwrap().replace("\\\n", "");
        let mut fenced = false;
        for line in text.lines() {
            fenced ^= line.starts_with("```");
            let command = if fenced { Some(line) } else { line.strip_prefix("    ") };
            let command = command.map(|c| c.strip_prefix("target/release/").unwrap_or(c));
            let begins = |c: &&str| c.starts_with("pgsluice ") || c.starts_with("psql ");
            found.extend(command.filter(begins).map(str::to_owned));
        }
    }
    found
}

/// The environment that the examples take for granted: databases, files, a service.
struct Stage {
    world: World,
}

impl Stage {
    fn new() -> Stage {
        let mut world = World::new(&each_major().pop().unwrap());
        for sql in [
            "CREATE ROLE loader LOGIN",
            "CREATE DATABASE test",
            "CREATE DATABASE mydb",
            "CREATE DATABASE shop OWNER loader",
        ] {
            world.sql(sql);
        }
        for folder in
            ["plain", "header", "landing", "bin", "home/.local/share/bash-completion/completions"]
        {
            fs::create_dir_all(world.path(folder)).unwrap();
        }
        // The program is copied out of the clone, where it would use the clone's own server. If
        // this process wrote the file, one that another test starts could hold it open.
        let program = [env!("CARGO_BIN_EXE_pgsluice"), &world.path("bin/pgsluice")];
        assert!(Command::new("cp").args(program).status().unwrap().success());
        let service = "[shop]\ndbname=shop\nuser=loader\n[warehouse]\ndbname=test\n";
        fs::write(world.path("services"), service).unwrap();
        let stage = Stage { world };
        let made = stage.run(
            ".",
            "pgsluice sample votes --rows 2000 --out plain/votes.csv
             (echo username,link,score; cat plain/votes.csv) >header/votes.csv
             gzip <header/votes.csv >header/part-1.csv.gz
             pgsluice sample events --rows 2000 --format text | gzip >plain/big.tsv.gz
             pgsluice sample events --rows 2000 | gzip >landing/events.csv.gz
             pgsluice sample events --ddl | psql -q -v ON_ERROR_STOP=1
             psql -q -v ON_ERROR_STOP=1 -c 'CREATE TABLE votes (username text, link text, score int)' \
                 -c 'CREATE SCHEMA s' -c 'CREATE TABLE s.votes (LIKE votes)'
             pgsluice sample votes --ddl | psql -q -v ON_ERROR_STOP=1 -d mydb",
        );
        assert!(made.status.success(), "{made:?}");
        stage
    }

    /// Runs a shell command in a folder of the stage.
    fn run(&self, folder: &str, command: &str) -> Output {
        let programs = &self.world.server.installation().bin;
        let path = format!("{}:{}:/usr/bin:/bin", self.world.path("bin"), programs.display());
        Command::new("bash")
            .args(["-e", "-c", command])
            .current_dir(self.world.path(folder))
            .env("PATH", path)
            .env("HOME", self.world.path("home"))
            .env("XDG_STATE_HOME", self.world.path("home/.local/state"))
            .env("PGHOST", self.world.server.socket_dir())
            .envs([("PGUSER", "postgres"), ("PGDATABASE", "test"), ("URL", "dbname=test")])
            .env("PGSERVICEFILE", self.world.path("services"))
            .env("PGSLUICE_PG_BIN", programs)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

/// Every example of the help, the guide and the README runs as it is and reports no error.
#[test]
fn every_example_runs() {
    let stage = Stage::new();
    let examples = examples();
    assert!(examples.len() > 20, "{examples:?}");
    for example in examples {
        let has_jq = || stage.run("plain", "command -v jq").status.success();
        if example.contains("| jq") && !has_jq() {
            left_out(&format!("the example {example}, since there is no jq here"));
            continue;
        }
        let folder = if example.contains("--header") { "header" } else { "plain" };
        // Replace a host and a folder that do not exist, and shrink a file of 160 MB.
        let command = example.replace("@db.example/", "@/").replace("7500000", "2000");
        let command = command.replace("'/landing/", &format!("'{}/", stage.world.path("landing")));
        let output = stage.run(folder, &command);
        assert!(output.status.success(), "{example}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("error"), "{example}: {said}");
        let _ = fs::remove_file(stage.world.path("plain/votes.bin"));
    }
    // Stop the servers that one of the examples has started.
    let output = stage.run("plain", "pgsluice server stop --dir /tmp/cluster");
    assert!(output.status.success(), "{output:?}");
}

/// Each installed shell can read its completions, and completes commands and options with them.
#[test]
fn completions() {
    let stage = Stage::new();
    for (shell, check) in [
        ("bash", "bash -n made"),
        ("zsh", "zsh -n made"),
        ("fish", "fish --no-execute made"),
        ("elvish", "elvish -compileonly made"),
        ("powershell", "true"),
    ] {
        let output = stage.run("plain", &format!("pgsluice completions {shell} >made"));
        assert!(output.status.success(), "{shell}: {output:?}");
        let made = fs::read_to_string(stage.world.path("plain/made")).unwrap();
        for word in ["load", "plan", "reject-file"] {
            assert!(made.contains(word), "{shell} lacks {word}");
        }
        let program = check.split(' ').next().unwrap();
        if stage.run("plain", &format!("command -v {program}")).status.success() {
            let output = stage.run("plain", check);
            assert!(output.status.success(), "{shell}: {output:?}");
        } else {
            left_out(&format!(
                "the completions of {shell}: there is no {program} here to read them"
            ));
        }
    }
    let asked = [
        (
            "bash",
            r#"source <(pgsluice completions bash); complete -p pgsluice | grep -o ' -F [^ ]*'
               COMP_WORDS=(pgsluice loa); COMP_CWORD=1
               _pgsluice pgsluice loa pgsluice; echo "${COMPREPLY[*]}"
               COMP_WORDS=(pgsluice load --reject-f); COMP_CWORD=2
               _pgsluice pgsluice --reject-f load; echo "${COMPREPLY[*]}""#,
            " -F _pgsluice\nload loads\n--reject-file\n",
        ),
        (
            "zsh",
            r#"pgsluice completions zsh >made
               zsh -fc 'autoload -U compinit; compinit -u -D; source ./made
                        echo $_comps[pgsluice]; whence -w _pgsluice'"#,
            "_pgsluice\n_pgsluice: function\n",
        ),
        (
            "fish",
            r#"pgsluice completions fish >made
               HOME=$PWD fish -c 'source ./made; complete -C "pgsluice loa"
                                  complete -C "pgsluice load --reject-f"' | cut -f 1"#,
            "load\nloads\n--reject-file\n",
        ),
    ];
    for (shell, ask, answer) in asked {
        if stage.run("plain", &format!("command -v {shell}")).status.success() {
            let output = stage.run("plain", ask);
            assert_eq!(String::from_utf8_lossy(&output.stdout), answer, "{shell}: {output:?}");
        }
    }
}
