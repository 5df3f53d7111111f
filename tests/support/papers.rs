//! Certificates for the servers and clients of a test, made by openssl(1).

use super::prelude::*;
use super::world::wall_clock;

/// A key of its own for each certificate.
const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

/// The file with the shift of openssl's wall clock.
const CLOCK: &str = "clock";

/// A directory with NAME.pem and NAME.key of each name.
pub struct Papers(TempDir);

impl Papers {
    pub fn none() -> Self {
        Self(TempDir::new().expect("a scratch directory"))
    }

    /// An authority `ca`, and what it has signed: `server`, which may be called by these names, and `app`, a client.
    pub fn issue(names: &str) -> Self {
        Self::none().with_issued(names)
    }

    /// The same, for programs whose wall clocks are behind: valid since two hours ago.
    pub fn issue_early(names: &str) -> Self {
        let papers = Self::none();
        std::fs::write(papers.file(CLOCK), "-7200").unwrap();
        papers.with_issued(names)
    }

    fn with_issued(self, names: &str) -> Self {
        self.add_authority("ca");
        for (name, extension) in [("server", format!("subjectAltName={names}")), ("app", String::new())] {
            std::fs::write(self.file("extensions"), format!("basicConstraints=CA:FALSE\n{extension}\n")).unwrap();
            self.openssl(&format!("req {NEW_KEY} -subj /CN={name} -keyout {name}.key -out {name}.csr"));
            self.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions \
                 -out {name}.pem"
            ));
        }
        self
    }

    pub fn add_authority(&self, name: &str) {
        self.sign_itself(name, "basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign");
    }

    /// A certificate for 127.0.0.1 that is signed by its own key alone; in place of the one of that name, if there is
    /// one.
    pub fn add_self_signed(&self, name: &str) {
        self.sign_itself(name, "subjectAltName=IP:127.0.0.1");
    }

    fn sign_itself(&self, name: &str, extensions: &str) {
        self.openssl(&format!(
            "req -x509 {NEW_KEY} -days 2 -subj /CN={name} -addext {extensions} -keyout {name}.key -out {name}.pem"
        ));
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        command.args(arguments.split_whitespace()).current_dir(self.0.path());
        let clock = self.file(CLOCK);
        if clock.exists() {
            command.env("LD_PRELOAD", wall_clock()).env("WALLCLOCK_FILE", clock);
        }
        let output = command.output().expect("openssl is missing: install the package openssl");
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The same as text, for options.
    pub fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    pub fn directory(&self) -> &Path {
        self.0.path()
    }

    pub fn into_directory(self) -> TempDir {
        self.0
    }
}
