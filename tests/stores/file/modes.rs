//! Who may do what with the files that we make: the directory decides, and no umask.

use super::*;
use std::os::unix::fs::MetadataExt;

fn write_everything(place: &Place, umask: &str) {
    let url = &place.url;
    let shell = |words: &str| {
        let script = format!("umask {umask}; exec {words}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).env("LEADERRUN_CONFIG", "/dev/null").env("LEADERRUN_STORE", url);
        end_of(&mut command).good();
    };
    let (run, ctl) = (env!("CARGO_BIN_EXE_leaderrun"), env!("CARGO_BIN_EXE_leaderctl"));
    shell(&format!("{run} shard true"));
    shell(&format!("{run} --once job shard true"));
    shell(&format!("{ctl} pause --keep shard"));
    shell(&format!("{ctl} resume shard"));
}

fn all_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = vec![directory.to_path_buf()];
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(all_below(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn whatever_the_umask_is_others_may_neither_read_nor_write() {
    for umask in ["0", "022", "077"] {
        let place = open_place();
        write_everything(&place, umask);
        let found = all_below(&place.directory());
        assert!(found.len() > 5, "{found:?}");
        for path in found {
            assert_eq!(mode_of(&path) & 0o7077, 0, "umask {umask}: {} {:o}", path.display(), mode_of(&path));
        }
    }
}

#[test]
fn what_is_open_to_others_is_closed_when_it_is_used() {
    let place = open_place();
    write_everything(&place, "0");
    for path in all_below(&place.directory()) {
        set_mode(&path, if path.is_dir() { 0o777 } else { 0o666 });
    }
    set_mode(&place.directory(), 0o755);
    write_everything(&place, "0");
    place.run(&["--once", "another"], &["true"]).good();
    for name in ["shard.lock", "shard.json", "+lock", "shard+orders", "shard+history", "shard+once"] {
        let path = place.directory().join(name);
        assert!(!path.exists() || mode_of(&path) & 0o7077 == 0, "{name} {:o}", mode_of(&path));
    }
    assert_eq!(mode_of(&place.directory()), 0o755, "the directory's own mode is its owner's");
}

/// One user of several, all in group 30000.
struct Member<'a>(&'a Place, &'a str);

impl Member<'_> {
    fn command(&self, umask: &str, program: &str, words: &[&str]) -> Command {
        let Self(place, user) = self;
        let user = format!("--reuid={user}");
        let mut command = Command::new("setpriv");
        // A primary group that is not the one they share.
        command.args([&user, "--regid=65534", "--groups=30000", "--", "sh", "-c"]);
        command.arg(format!("umask {umask}; exec \"$@\"")).arg("sh").arg(place.path(program));
        command.args(["--store", &place.url]).args(words).env("LEADERRUN_CONFIG", "/dev/null");
        command
    }
}

fn shared() -> Place {
    let place = open_place();
    for program in [env!("CARGO_BIN_EXE_leaderrun"), env!("CARGO_BIN_EXE_leaderctl")] {
        let to = place.path(Path::new(program).file_name().unwrap().to_str().unwrap());
        assert!(Command::new("cp").arg(program).arg(to).status().unwrap().success());
    }
    fs::create_dir(place.directory()).unwrap();
    std::os::unix::fs::chown(place.directory(), Some(0), Some(30000)).unwrap();
    set_mode(&place.directory(), 0o2770);
    place
}

#[test]
fn all_members_of_the_group_that_a_directory_belongs_to_share_it() {
    let place = shared();
    let (one, other, root) = (Member(&place, "20001"), Member(&place, "20002"), Member(&place, "0"));
    for umask in ["0", "022", "077"] {
        for member in [&one, &other, &root, &one] {
            for words in [&["-n", "shard", "true"][..], &["--once", "job", "shard", "true"]] {
                end_of(&mut member.command(umask, "leaderrun", words)).good();
            }
            for words in
                [&["pause", "--keep", "shard"][..], &["resume", "shard"], &["status", "shard"], &["history", "shard"]]
            {
                end_of(&mut member.command(umask, "leaderctl", words)).good();
            }
        }
        for path in &all_below(&place.directory())[1..] {
            let expected = if path.is_dir() { 0o770 } else { 0o660 };
            assert_eq!(mode_of(path) & 0o777, expected, "{}", path.display());
            assert_eq!(fs::metadata(path).unwrap().gid(), 30000, "{}", path.display());
        }
        fs::remove_dir_all(place.directory().join("shard+once")).unwrap();
    }
}

#[test]
fn one_member_of_the_group_is_kept_out_while_another_one_leads() {
    let place = shared();
    let mut leader = Member(&place, "20001").command("077", "leaderrun", &["shard", "sleep", "1000"]).spawn().unwrap();
    let other = Member(&place, "20002");
    wait_until("it leads", || {
        end_of(&mut other.command("077", "leaderctl", &["status", "shard"])).out.contains("led by")
    });
    assert_eq!(end_of(&mut other.command("077", "leaderrun", &["-n", "shard", "true"])).code, 75);
    leader.kill().unwrap();
    leader.wait().unwrap();
    end_of(&mut other.command("077", "leaderrun", &["shard", "true"])).good();
}

#[test]
fn root_gives_nobody_a_file_or_a_directory_that_was_moved_in() {
    for (owner, group, mode) in [(20001, 20001, 0o755), (0, 30000, 0o2770)] {
        let place = shared();
        std::os::unix::fs::chown(place.directory(), Some(owner), Some(group)).unwrap();
        set_mode(&place.directory(), mode);
        let (secret, folder) = (place.directory().join("shard.lock"), place.directory().join("shard+once"));
        fs::write(&secret, "secret").unwrap();
        set_mode(&secret, 0o600);
        fs::create_dir(&folder).unwrap();
        set_mode(&folder, 0o700);
        for path in [&secret, &folder] {
            std::os::unix::fs::chown(path, Some(0), Some(0)).unwrap();
        }
        place.run(&["--once", "job"], &["true"]).good();
        for path in [&secret, &folder] {
            let found = fs::metadata(path).unwrap();
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o77), (0, 0, 0), "{}", path.display());
        }
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    }
}
