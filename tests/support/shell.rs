//! A shell in a terminal of its own (tmux).

use super::prelude::*;

/// An interactive bash in a terminal of its own.
pub struct Shell {
    scratch: TempDir,
}

impl Shell {
    pub fn start() -> Self {
        let shell = Self { scratch: TempDir::new().unwrap() };
        let store = format!("LEADERRUN_STORE={}", shell.files());
        let file = format!("FILE={}", shell.scratch.path().join("file").display());
        let program = format!("PATH={}:/usr/bin:/bin", program_directory());
        let started = shell
            .tmux()
            .args(["-f", "/dev/null", "new-session", "-d", "-x", "200", "-y", "50"])
            .args(["env", "-i", "TERM=screen", "PS1=ready> ", &store, &file, &program])
            .args(["bash", "--norc", "--noprofile", "-i"])
            .status()
            .expect("tests/run installs tmux");
        assert!(started.success());
        shell.wait_for("ready>");
        shell
    }

    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    pub fn files(&self) -> String {
        format!("file:{}", self.scratch.path().join("store").display())
    }

    fn tmux(&self) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(self.scratch.path().join("socket")).stdin(Stdio::null());
        tmux
    }

    /// Types a line, or names a key: `C-c`.
    pub fn keys(&self, keys: &[&str]) {
        assert!(self.tmux().arg("send-keys").args(keys).status().unwrap().success());
    }

    pub fn line(&self, line: &str) {
        self.keys(&[line, "Enter"]);
    }

    pub fn screen(&self) -> String {
        let output = self.tmux().args(["capture-pane", "-p"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// After this line, the screen has `wanted` in it, some time.
    #[track_caller]
    pub fn shows(&self, line: &str, wanted: &str) {
        self.line(line);
        self.wait_for(wanted);
    }

    /// The same after a key.
    #[track_caller]
    pub fn press(&self, key: &str, wanted: &str) {
        self.keys(&[key]);
        self.wait_for(wanted);
    }

    /// The last command ends with it.
    #[track_caller]
    pub fn status(&self, status: i32) {
        self.shows("echo status $?", &format!("status {status}"));
    }

    pub fn wait_until(&self, what: &str, condition: impl FnMut() -> bool) {
        wait_until_or(what, || self.screen(), condition);
    }

    pub fn wait_for(&self, text: &str) {
        wait_until_or(text, || self.screen(), || self.screen().contains(text));
    }

    pub fn close(&self) {
        assert!(self.tmux().arg("kill-pane").status().unwrap().success());
    }

    pub fn file(&self) -> String {
        fs::read_to_string(self.scratch.path().join("file")).unwrap_or_default()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.tmux().arg("kill-server").stderr(Stdio::null()).status();
    }
}

fn program_directory() -> &'static str {
    env!("CARGO_BIN_EXE_leaderrun").rsplit_once('/').expect("an absolute path").0
}
