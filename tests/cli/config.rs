//! The configuration file: what it sets, what overrules it, and how it is refused when something is wrong in it.

use crate::support::prelude::*;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

type Variables<'a> = &'a [(&'a str, &'a str)];

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn url(&self, name: &str) -> String {
        format!("file:{}", self.path(name).display())
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    /// One with a store of its own in it as well.
    fn config(&self, text: &str) -> String {
        self.file("leaderrun.toml", format!("store = '{}'\n{text}\n", self.url("store")))
    }

    fn leaderrun(&self, text: &str) -> Command {
        let mut command = leaderrun();
        command.arg("--config").arg(self.config(text)).stdin(Stdio::null());
        command
    }

    fn run(&self, text: &str, arguments: &[&str]) -> Said {
        self.leaderrun(text).args(arguments).said()
    }
}

/// A line of `--explain`: its second word.
fn explained(output: &Said, name: &str) -> String {
    let text = output.clone().good();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}: {text}"));
    line.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn a_flag_goes_before_the_environment_before_the_file_before_the_default() {
    let place = Place::new();
    let lease = |file: &str, variable: Option<&str>, flags: &[&str]| {
        let mut command = place.leaderrun(file);
        command.envs(variable.map(|value| ("LEADERRUN_LEASE", value)));
        explained(&command.args(flags).args(["--explain", "a"]).said(), "lease")
    };
    assert_eq!(lease("", None, &[]), "15s");
    assert_eq!(lease("lease = '30s'", None, &[]), "30s");
    assert_eq!(lease("lease = '30s'", Some("40s"), &[]), "40s");
    assert_eq!(lease("lease = '30s'", Some("40s"), &["--lease", "50s"]), "50s");
    assert_eq!(lease("lease = '30s'", None, &["--lease", "50s"]), "50s");
}

#[test]
fn the_file_is_named_by_the_flag_else_by_the_variable() {
    let place = Place::new();
    let one = place.file("one.toml", "lease = 31");
    let two = place.file("two.toml", "lease = 32");
    let explain = |flags: &[&str]| {
        let mut command = leaderrun();
        command.env("LEADERRUN_CONFIG", &one).args(["--store", "file:/nowhere", "--explain"]).args(flags).arg("a");
        explained(&command.said(), "lease")
    };
    assert_eq!(explain(&[]), "31s");
    assert_eq!(explain(&["--config", &two]), "32s");
    assert_eq!(explain(&["--config", "/dev/null"]), "15s");
}

/// In a mount namespace, so that this machine's `/etc` and its default store stay as they are.
fn with_default_file(text: Option<&str>, program: &str, arguments: &[&str]) -> Said {
    let write = text.map_or("", |_| "printf %s \"$TEXT\" > /etc/leaderrun.toml && ");
    let script = format!("mount -t tmpfs none /etc && mount -t tmpfs none /var/lib && {write} exec \"$0\" \"$@\"");
    let mut command = unconfigured("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, program]).args(arguments);
    command.env_remove("LEADERRUN_CONFIG").env("TEXT", text.unwrap_or_default()).said()
}

#[test]
fn the_default_file_is_read_where_it_is_there() {
    let leaderrun = env!("CARGO_BIN_EXE_leaderrun");
    let explain = ["--store", "file:/nowhere", "--explain", "a"];
    assert_eq!(explained(&with_default_file(None, leaderrun, &explain), "lease"), "15s");
    assert_eq!(explained(&with_default_file(Some("lease = 30"), leaderrun, &explain), "lease"), "30s");
    let output = with_default_file(Some("leese = 30"), leaderrun, &explain);
    output.refused(64, "leaderrun: /etc/leaderrun.toml, line 1: unknown key leese …  lease?");
    let none = [&["--config", "/dev/null"], &explain[..]].concat();
    assert_eq!(explained(&with_default_file(Some("leese = 30"), leaderrun, &none), "lease"), "15s");
}

#[test]
fn a_command_of_the_file_is_not_left_out_in_silence() {
    let place = Place::new();
    let both = place.run("command = 'echo file'", &["a", "echo", "line"]);
    both.refused(64, "command in the configuration file and COMMAND exclude each other");
    assert_eq!(place.run("[shard.b]\ncommand = 'echo file'", &["a", "echo", "line"]).good(), "line\n");
}

#[test]
fn a_store_is_taken_from_the_file_where_nothing_else_names_one() {
    let place = Place::new();
    let credentials = place.path("credentials");
    fs::create_dir(&credentials).unwrap();
    fs::write(credentials.join("leaderrun.store"), place.url("from-credential")).unwrap();
    let variable_file = place.file("variable", place.url("from-variable-file"));
    let flag_file = place.file("flag", place.url("from-flag-file"));
    let by_url = place.file("url.toml", format!("store = '{}'", place.url("from-config")));
    let named = place.file("named", place.url("from-config-file"));
    let by_file = place.file("file.toml", format!("store-file = '{named}'"));
    let flag = place.url("from-flag");
    let variable = place.url("from-variable");
    let ways: [(&str, &str, Variables, &[&str]); 9] = [
        ("from-config", &by_url, &[], &[]),
        ("from-config-file", &by_file, &[], &[]),
        ("from-credential", &by_url, &[("CREDENTIALS_DIRECTORY", credentials.to_str().unwrap())], &[]),
        ("from-credential", &by_file, &[("CREDENTIALS_DIRECTORY", credentials.to_str().unwrap())], &[]),
        ("from-variable-file", &by_url, &[("LEADERRUN_STORE_FILE", &variable_file)], &[]),
        ("from-variable", &by_file, &[("LEADERRUN_STORE", &variable)], &[]),
        ("from-flag-file", &by_url, &[("LEADERRUN_STORE", &variable)], &["--store-file", &flag_file]),
        ("from-flag", &by_file, &[("LEADERRUN_STORE_FILE", &variable_file)], &["--store", &flag]),
        ("from-flag", &by_url, &[], &["--store", &flag]),
    ];
    for (taken, config, environment, flags) in ways {
        for (mut command, arguments) in
            [(leaderrun(), &["-q", "shard", "true"][..]), (leaderctl(), &["store", "init"][..])]
        {
            command.env_remove("CREDENTIALS_DIRECTORY").envs(environment.iter().copied());
            command.args(["--config", config]).args(flags).args(arguments).said().good();
            assert!(place.path(taken).is_dir(), "{taken}");
            fs::remove_dir_all(place.path(taken)).unwrap();
            assert!(ways.iter().all(|(other, ..)| !place.path(other).exists()), "{taken} was not the only one");
        }
    }
}

#[test]
fn leaderctl_reads_the_same_file() {
    let place = Place::new();
    let config = place.config("request-timeout = 0\nlease = '30s'\n[shard.a]\nlease = '20s'");
    leaderctl().args(["--config", &config, "status", "a"]).said().refused(64, "--request-timeout 0s leaves no time");
    let output = leaderctl().args(["--config", &config, "--request-timeout", "2", "status", "a"]).said();
    assert!(output.good().starts_with("a: never led"));
    let output = leaderctl().args(["status", "a", "--config", &place.config("leese = 1")]).said();
    output.refused(64, "leaderctl:  … line 2: unknown key leese");
}

#[test]
fn a_shard_has_what_its_table_says() {
    let place = Place::new();
    let text = "lease = '30s'\nrenew = 4\nno-wait = true\n\
                [shard.\"db/main\"]\nlease = '40s'\nwait = 1\ncommand = 'echo main'\n[shard.other]\n";
    for (shard, lease) in [("db/main", "40s"), ("other", "30s"), ("db", "30s")] {
        let output = place.run(text, &["--explain", shard]);
        assert_eq!((explained(&output, "lease").as_str(), explained(&output, "renew").as_str()), (lease, "4s"));
    }
    assert_eq!(place.run(text, &["db/main"]).good(), "main\n");
    assert_eq!(explained(&place.run(text, &["--explain", "--lease", "50s", "db/main"]), "lease"), "50s");
    for (text, words) in [
        ("[shard]\nlease = 5", "line 3: shard: write a table for each shard"),
        ("[shard.'redis://u:hunter2@h']", "line 2: a table below shard has a name that no shard can have"),
        ("[shard.a]\nleese = 5", "line 3: unknown key leese: did you mean lease?"),
        ("explain = true", "line 2: unknown key explain"),
        ("[shard.b]\nstore = 'redis://u:hunter2@h'", "line 3: store is for all shards"),
        ("[shard.b]\nno-wait = true\nwait = 5", "line 4: no-wait and wait exclude each other"),
    ] {
        place.run(text, &["--explain", "a"]).refused(64, words);
    }
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    let place = Place::new();
    let path = place.path("leaderrun.toml").display().to_string();
    let words = format!("{path}, line 2: unknown key leese: did you mean lease? (");
    place.run("leese = 5", &["a", "true"]).refused(64, &words);
    // What a file cannot set, and what may be no key at all.
    for key in ["config", "help", "version", "\"redis://u:hunter2@h\"", "\"hunter2 \\n\"", "\"\""] {
        place.run(&format!("{key} = 'hunter2'"), &["a", "true"]).refused(64, "line 2: unknown key");
    }
}

#[test]
fn wrong_types_and_bad_values_are_refused_by_what_the_flag_would_say() {
    let place = Place::new();
    for (text, words) in [
        ("lease = 'soon'", "line 2: lease: write a duration such as 15s"),
        ("renew = 5\nlease = -5", "line 3: lease: write a duration"),
        ("lease = [5]", "lease: write a text in quotes, or a decimal number"),
        ("quiet = 'true'", "quiet: write true or false"),
        ("verbose = true", "verbose: write a whole number"),
        ("verbose = 1000", "verbose: "),
        ("announce = 'hunter2'", "announce: possible values: auto, always, never"),
        ("command = \"a\\u0000\"", "command: contains a NUL"),
        ("store-file = ''", "store-file: is empty"),
        ("store-file = 'hunter2'", "line 2: store and store-file exclude each other"),
        ("lease = 5\nlease = 6", "line 3: duplicate key"),
        ("redis://u:hunter2@h", "line 2: "),
        ("store-file = 'redis://u:hunter2@h", "line 2: "),
    ] {
        // Also where something else overrules it.
        let output = place.leaderrun(text).args(["--lease", "20", "a", "true"]).said();
        let path = place.path("leaderrun.toml").display().to_string();
        output.refused(64, &format!("leaderrun: {path},  … {words} …  (see leaderrun --help)\n"));
    }
    place.run("lease = 1", &["a", "true"]).refused(64, "leaves no room in a lease of 1s");
}

#[test]
fn a_wrong_store_is_refused_by_its_line_also_where_something_else_overrules_it() {
    let place = Place::new();
    for (url, words) in
        [("", "the store URL is empty"), ("redi://u:hunter2@h", "no store is called redi: did you mean redis?")]
    {
        let file = place.file("wrong.toml", format!("lease = 20\nstore = '{url}'\n"));
        for (mut program, operands) in [(leaderrun(), ["a", "true"]), (leaderctl(), ["status", "a"])] {
            let said = program.args(["--config", &file, "--store", &place.url("store")]).args(operands).said();
            said.refused(64, &format!("wrong.toml, line 2: store: {words}"));
        }
    }
}

#[test]
fn a_file_that_cannot_be_read_is_a_usage_error() {
    let place = Place::new();
    let run = |path: &str| leaderrun().args(["--config", path, "a", "true"]).said();
    let missing = place.path("missing").display().to_string();
    run(&missing).refused(64, "the configuration file  … /missing cannot be read: no such file");
    run("/dev/zero").refused(64, "is larger than 1024 KiB");
    let pipe = place.path("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    run(pipe.to_str().unwrap()).refused(64, "/pipe cannot be read: it is a named pipe; name a regular file");
    run(&place.file("binary", b"lease = \"\xff\"")).refused(64, "is not UTF-8");
    run(&place.file("two\nlines", "x")).refused(64, "two?lines, line 1: ");
    run(&place.file("deep", "lease = ".to_owned() + &"[".repeat(100_000))).refused(64, "line 1: ");
    let largest = place.file("largest", format!("lease = 30\n{}", "#".repeat((1 << 20) - 11)));
    let mut command = leaderrun();
    command.args(["--config", &largest, "--store", "file:/nowhere", "--explain", "a"]);
    assert_eq!(explained(&command.said(), "lease"), "30s");
}

/// How a file is named, and what is said when everybody can read it.
type Way<'a> = (&'a dyn Fn(&str, u32) -> Said, &'a str);

#[test]
fn a_password_that_everybody_can_read_is_refused() {
    let place = Place::new();
    let closed = |path: String, mode: u32| {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let configured = |url: &str, mode: u32| {
        let path = closed(place.file("secret.toml", format!("store = '{url}'")), mode);
        leaderrun().args(["--config", &path, "--explain", "a"]).said()
    };
    let by_file = |url: &str, mode: u32| {
        let path = closed(place.file("secret", format!("{url}\n")), mode);
        leaderrun().args(["--store-file", &path, "--explain", "a"]).said()
    };
    let by_variable = |url: &str, mode: u32| {
        let path = closed(place.file("variable", url), mode);
        leaderrun().env("LEADERRUN_STORE_FILE", &path).args(["--explain", "a"]).said()
    };
    let by_credential = |url: &str, mode: u32| {
        closed(place.file("leaderrun.store", url), mode);
        leaderrun().env("CREDENTIALS_DIRECTORY", place.0.path()).args(["--explain", "a"]).said()
    };
    let ways: [Way; 4] = [
        (&configured, "secret.toml: store has a password in it, and everybody can read this file: chmod o-r"),
        (&by_file, "secret: the URL has a password in it, and everybody can read this file: chmod o-r"),
        (&by_variable, "variable: the URL has a password in it, and everybody can read this file: chmod o-r"),
        (&by_credential, "leaderrun.store: the URL has a password in it, and everybody can read this file"),
    ];
    for (run, words) in ways {
        for url in ["redis://u:hunter2@h", "nats://hunter2@h/b", "redis+sentinel://h/m?sentinel_password=hunter2"] {
            run(url, 0o644).refused(64, words);
            assert!(run(url, 0o640).good().starts_with("shard "));
        }
        for url in ["redis://h", "postgres://user@h/db", "postgres://h/passwords"] {
            assert!(run(url, 0o644).good().starts_with("shard "));
        }
    }
}

#[test]
fn the_example_in_the_manual_is_taken() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("man/leaderrun.1")).unwrap();
    let (_, section) = page.split_once(".Sh CONFIGURATION FILE\n").unwrap();
    let (_, example) = section.split_once(".Bd -literal -offset indent\n").unwrap();
    let (example, _) = example.split_once(".Ed\n").unwrap();
    let place = Place::new();
    let path = place.file("example.toml", example);
    // The user who runs this has no such store file.
    let flags = ["--config", &path, "--store", "file:/nowhere", "--explain"];
    let explain = |shard| leaderrun().args(flags).arg(shard).said();
    assert_eq!(explained(&explain("a"), "lease"), "30s");
    assert_eq!(explained(&explain("db/main"), "lease"), "1m");
}

#[test]
fn each_line_that_the_packaged_file_offers_is_taken_and_as_it_is_the_file_sets_nothing() {
    let packaged = include_str!("../../packaging/leaderrun.toml");
    let place = Place::new();
    let explain = |text: &str, shard: &str| {
        let file = place.file("packaged.toml", text);
        let store = place.url("store");
        leaderrun().args(["--config", &file, "--store", &store, "--explain", shard]).said()
    };
    let without = leaderrun().args(["--store", &place.url("store"), "--explain", "db/main"]).said();
    assert_eq!(explain(packaged, "db/main").good(), without.good());
    // Keys follow the # at once; of the two stores one may stand.
    let offered: Vec<&str> = packaged.lines().filter_map(|line| line.strip_prefix('#')).collect();
    let offered: Vec<&str> = offered.into_iter().filter(|line| !line.is_empty() && !line.starts_with(' ')).collect();
    assert!(offered.len() > 5, "{offered:?}");
    for left_out in ["store = ", "store-file = "] {
        let lines: Vec<&str> = offered.iter().copied().filter(|line| !line.starts_with(left_out)).collect();
        explain(&lines.join("\n"), "db/main").good();
    }
}
