//! kube-apiserver beside an etcd of its own, with RBAC: tests/support/kubernetes.sh builds it. Nothing else of a cluster is
//! there, so no Pod is started and no namespace is ever gone.

use super::etcd;
use super::papers::Papers;
use super::prelude::*;
use super::server;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Weak};
use yaml_rust2::YamlLoader;

/// What a candidate needs, as users are told to apply it.
pub const RIGHTS: &str = include_str!("../../examples/kubernetes/rights.yaml");
/// The user that a candidate of the tests is, by its certificate.
pub const USER: &str = "app";
/// The service account of [`RIGHTS`].
pub const ACCOUNT: &str = "leaderrun";
/// A user, and the token, that may do everything.
const ADMIN: &str = "admin";
/// The same of one who may do what a test grants.
pub const OTHER: &str = "other";
const TOKENS: &str = "admin,admin,1,system:masters\nother,other,2\n";

/// An API server, and a namespace of it in which [`USER`] and [`ACCOUNT`] have [`RIGHTS`].
pub struct Server {
    pub api: Arc<Api>,
    pub namespace: String,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(flags: &[&str]) -> Self {
        Self::on(Arc::new(Api::start(flags)))
    }

    /// A namespace of its own on a server that other tests of this program use as well: it starts for some seconds.
    pub fn shared() -> Self {
        static SHARED: Mutex<Weak<Api>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().expect("nobody panicked");
        let api = shared.upgrade().unwrap_or_else(|| Arc::new(Api::start(&[])));
        *shared = Arc::downgrade(&api);
        drop(shared);
        Self::on(api)
    }

    fn on(api: Arc<Api>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = Self { api, namespace: format!("tests-{}", COUNT.fetch_add(1, Ordering::Relaxed)) };
        server.grant_rights();
        server
    }

    fn grant_rights(&self) {
        let namespace = json!({ "metadata": { "name": self.namespace } });
        self.api.create("/api/v1/namespaces", "application/json", &namespace.to_string());
        self.apply(RIGHTS);
        self.bind("leaderrun", USER);
        wait_until("the rights are in force", || self.may_list());
    }

    fn bind(&self, role: &str, user: &str) {
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "kind": "RoleBinding",
            "apiVersion": format!("{group}/v1"),
            "metadata": { "name": format!("{role}-{user}") },
            "subjects": [{ "kind": "User", "apiGroup": group, "name": user }],
            "roleRef": { "kind": "Role", "apiGroup": group, "name": role },
        });
        self.apply(&binding.to_string());
    }

    /// What `--store` takes of [`OTHER`], who may do this with Leases here.
    pub fn url_of_other(&self, verbs: &[&str]) -> String {
        let role = json!({
            "kind": "Role",
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "metadata": { "name": OTHER },
            "rules": [{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs }],
        });
        self.apply(&role.to_string());
        self.bind(OTHER, OTHER);
        let file = self.kubeconfig_of(&format!("https://{}", self.address()), &format!("token: {OTHER}"), OTHER);
        format!("kubernetes://{}?kubeconfig={}", self.namespace, file.display())
    }

    /// RBAC hears of a change some time after it.
    fn may_list(&self) -> bool {
        let cert = self.api.papers.path("app.pem");
        let key = self.api.papers.path("app.key");
        let path = self.leases();
        self.api.curl("GET", &path, &["--cert", &cert, "--key", &key]).is_some_and(|answer| answer.status == 200)
    }

    /// Creates here what the documents of a YAML file are of, which names the namespace `default`.
    pub fn apply(&self, yaml: &str) {
        let yaml = yaml.replace("namespace: default", &format!("namespace: {}", self.namespace));
        for document in yaml.split("\n---\n") {
            let fields = &YamlLoader::load_from_str(document).expect("it is YAML")[0];
            let group = match fields["apiVersion"].as_str().expect("it has a version") {
                "v1" => "/api/v1".to_owned(),
                group => format!("/apis/{group}"),
            };
            let kind = fields["kind"].as_str().expect("it has a kind").to_lowercase();
            let path = format!("{group}/namespaces/{}/{kind}s", self.namespace);
            self.api.create(&path, "application/yaml", document);
        }
    }

    pub fn leases(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    pub fn lease(&self, name: &str) -> Option<Value> {
        let answer = self.api.ask("GET", &format!("{}/{name}", self.leases()), "");
        (answer.status == 200).then_some(answer.body)
    }

    pub fn all(&self) -> Vec<Value> {
        let answer = self.api.ask("GET", &self.leases(), "");
        answer.body["items"].as_array().unwrap_or_else(|| panic!("{answer:?}")).clone()
    }

    /// Writes what was read, with changes.
    pub fn put(&self, lease: &Value) -> Answer {
        let name = lease["metadata"]["name"].as_str().expect("it has a name");
        self.api.ask("PUT", &format!("{}/{name}", self.leases()), &lease.to_string())
    }

    pub fn post(&self, lease: &Value) -> Answer {
        self.api.ask("POST", &self.leases(), &lease.to_string())
    }

    pub fn delete(&self, name: &str) {
        let answer = self.api.ask("DELETE", &format!("{}/{name}", self.leases()), "");
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
    }

    /// What `--store` takes, with more behind.
    pub fn url_with(&self, more: &str) -> String {
        self.own_url() + more
    }

    /// A kubeconfig of [`USER`], for an API server at these addresses.
    fn kubeconfig(&self, address: SocketAddr) -> PathBuf {
        let papers = &self.api.papers;
        let user = format!("client-certificate: {}, client-key: {}", papers.path("app.pem"), papers.path("app.key"));
        self.kubeconfig_of(&format!("https://{address}"), &user, &format!("user-{}", address.port()))
    }

    /// A kubeconfig with these fields of a user, in YAML.
    pub fn kubeconfig_of(&self, server: &str, user: &str, name: &str) -> PathBuf {
        let file = self.api.data.path().join(format!("{}-{name}.yaml", self.namespace));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters: [{{name: test, cluster: {{server: \"{server}\", certificate-authority: {}}}}}]\n\
             users: [{{name: test, user: {{{user}}}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: test, namespace: {}}}}}]\n",
            self.api.papers.path("ca.pem"),
            self.namespace,
        );
        // Whole at once: a candidate may read it meanwhile.
        let new = file.with_extension(format!("{:?}", std::thread::current().id()));
        std::fs::write(&new, text).expect("it can be written");
        std::fs::rename(&new, &file).expect("it can be renamed");
        file
    }

    /// A token of the service account, as a Pod has it: good while this Secret is there.
    pub fn token(&self, secret: &str) -> String {
        let metadata = json!({ "metadata": { "name": secret } }).to_string();
        let secrets = format!("/api/v1/namespaces/{}/secrets", self.namespace);
        let made = self.api.create(&secrets, "application/json", &metadata);
        let request = json!({ "spec": { "boundObjectRef": {
            "kind": "Secret", "apiVersion": "v1", "name": secret, "uid": made["metadata"]["uid"],
        }}});
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{ACCOUNT}/token", self.namespace);
        let answer = self.api.create(&path, "application/json", &request.to_string());
        answer["status"]["token"].as_str().expect("a token").to_owned()
    }

    /// The tokens that are bound to it are good no longer, some seconds later.
    pub fn delete_secret(&self, secret: &str) {
        let path = format!("/api/v1/namespaces/{}/secrets/{secret}", self.namespace);
        assert_eq!(self.api.ask("DELETE", &path, "").status, 200);
    }

    /// Starts `command` as in a Pod: with the account of the namespace, whose token and authority are files of `account`.
    pub fn in_a_pod(&self, account: &Path, command: &[&str]) -> Command {
        const POD: &str = "mount -t tmpfs none /run
            account=/run/secrets/kubernetes.io/serviceaccount
            mkdir -p $account
            cp \"$0\"/* $account
            exec \"$@\"";
        std::fs::write(account.join("namespace"), &self.namespace).expect("it can be written");
        std::fs::copy(self.api.papers.file("ca.pem"), account.join("ca.crt")).expect("it can be copied");
        let mut pod = Command::new("unshare");
        pod.args(["--mount", "sh", "-ec", POD]).arg(account).args(command);
        pod.env("KUBERNETES_SERVICE_HOST", self.address().ip().to_string());
        pod.env("KUBERNETES_SERVICE_PORT", self.address().port().to_string());
        pod.env_remove("KUBECONFIG").env("LEADERRUN_CONFIG", "/dev/null");
        pod
    }
}

impl server::Server for Server {
    fn port(&self) -> u16 {
        self.api.member.port
    }

    fn url(&self, address: SocketAddr) -> String {
        format!("kubernetes://{}?kubeconfig={}", self.namespace, self.kubeconfig(address).display())
    }

    fn pid(&self) -> Pid {
        self.api.member.child.pid()
    }

    fn kill(&mut self) {
        self.own().kill();
    }

    fn start_again(&mut self) {
        self.own().start_again();
    }

    fn wipe(&mut self) {
        assert_eq!(self.api.ask("DELETE", &self.leases(), "").status, 200);
        server::prepare(self);
    }

    fn remove_lock(&mut self, shard: &str) {
        self.delete(&name_of(shard));
    }

    fn grow_old(&mut self) {
        server::vouch_for(self);
    }
}

impl Server {
    pub fn own(&mut self) -> &mut Api {
        Arc::get_mut(&mut self.api).expect("no other test uses it")
    }
}

pub fn name_of(shard: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if shard.bytes().all(plain) {
        return shard.to_owned();
    }
    let escaped = shard.bytes().map(|byte| if plain(byte) { char::from(byte).into() } else { format!("-{byte:02x}") });
    format!("leaderrun.x{}", escaped.collect::<String>())
}

/// A kube-apiserver with its etcd.
pub struct Api {
    pub member: Member,
    etcd: etcd::Server,
    pub papers: Papers,
    data: TempDir,
}

/// One of the API servers of an etcd.
pub struct Member {
    child: Process,
    port: u16,
    words: Vec<String>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Api {
    fn start(flags: &[&str]) -> Self {
        // With etcd's usual timing: the server passes on each change of its leader as an error.
        let etcd = etcd::Server::start_with(&["--heartbeat-interval", "100", "--election-timeout", "1000"]);
        let data = TempDir::new().expect("a scratch directory");
        let papers = Papers::issue_early(&format!("IP:127.0.0.1,IP:{}", super::network::HUB));
        std::fs::write(data.path().join("tokens"), TOKENS).expect("a file");
        let words = words(&etcd.host(), &papers, data.path(), flags);
        Self { member: Member::start(words), etcd, papers, data }
    }

    fn address(&self) -> SocketAddr {
        self.member.address()
    }

    pub fn another(&self) -> Member {
        Member::start(self.member.words.clone())
    }

    fn kill(&mut self) {
        self.member.kill();
        self.etcd.kill();
    }

    fn start_again(&mut self) {
        self.etcd.start_again();
        self.member.start_again();
    }

    pub fn back_up(&mut self) -> TempDir {
        self.etcd.back_up()
    }

    pub fn restore(&mut self, copy: &TempDir) {
        self.member.kill();
        self.etcd.restore(copy);
        self.member.start_again();
    }

    /// As an administrator. The body is JSON, or nothing.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.send(method, path, "application/json", body)
    }

    fn send(&self, method: &str, path: &str, kind: &str, body: &str) -> Answer {
        let login = format!("Authorization: Bearer {ADMIN}");
        let kind = format!("Content-Type: {kind}");
        let body: &[&str] = if body.is_empty() { &[] } else { &["--data-binary", body, "-H", &kind] };
        self.curl(method, path, &[&["-H", &login], body].concat()).expect("the server answers")
    }

    /// What was made, which nobody had made before.
    fn create(&self, path: &str, kind: &str, body: &str) -> Value {
        let answer = self.send("POST", path, kind, body);
        assert_eq!(answer.status, 201, "{path}: {body}: {answer:?}");
        answer.body
    }

    /// None while nobody answers.
    pub fn curl(&self, method: &str, path: &str, more: &[&str]) -> Option<Answer> {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-m", "20", "-X", method, "-w", "\n%{http_code}", "--cacert", &self.papers.path("ca.pem")]);
        let output = curl.arg(format!("https://{}{path}", self.address())).args(more).output();
        let output = output.expect("curl is missing: install the package curl");
        let text = String::from_utf8(output.stdout).expect("it is text");
        let (body, status) = text.rsplit_once('\n')?;
        let status = status.parse().ok().filter(|status| *status > 0)?;
        Some(Answer { status, body: serde_json::from_str(body).unwrap_or_else(|_| body.into()) })
    }

    /// How many requests for Leases it has answered, those of watches when they ended.
    pub fn requests(&self) -> u64 {
        self.count("apiserver_request_total{")
    }

    fn count(&self, counter: &str) -> u64 {
        let metrics = self.ask("GET", "/metrics", "").body;
        let lines = metrics.as_str().expect("it is text").lines();
        let lines = lines.filter(|line| line.starts_with(counter) && line.contains("resource=\"leases\""));
        lines.map(|line| line.rsplit(' ').next().expect("a value").parse::<u64>().expect("a number")).sum()
    }
}

impl Member {
    fn start(words: Vec<String>) -> Self {
        let (port, child) = server::on_a_free_port("kube-apiserver", |port| {
            let mut child = spawn(&words, port);
            becomes_ready(&mut child, port).then_some((port, child))
        });
        Self { child, port, words }
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub fn kill(&mut self) {
        self.child.end();
    }

    pub fn start_again(&mut self) {
        self.child = spawn(&self.words, self.port);
        assert!(becomes_ready(&mut self.child, self.port), "kube-apiserver does not start again");
    }

    pub fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }
}

/// Beside the server.
pub fn elector() -> PathBuf {
    program().with_file_name("elector")
}

fn program() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/kubernetes/kube-apiserver");
    std::env::var_os("TEST_KUBE_APISERVER").map_or(built, PathBuf::from)
}

fn words(etcd: &str, papers: &Papers, data: &Path, flags: &[&str]) -> Vec<String> {
    let mut words = vec![
        format!("--etcd-servers=http://{etcd}"),
        format!("--bind-address={}", server::listen_on()),
        // It wants one that is not of this host alone, and nobody asks it there.
        "--advertise-address=192.0.2.1".to_owned(),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        format!("--tls-cert-file={}", papers.path("server.pem")),
        format!("--tls-private-key-file={}", papers.path("server.key")),
        format!("--client-ca-file={}", papers.path("ca.pem")),
        format!("--token-auth-file={}", data.join("tokens").display()),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--api-audiences=api".to_owned(),
        format!("--service-account-key-file={}", papers.path("server.pem")),
        format!("--service-account-signing-key-file={}", papers.path("server.key")),
        "--authorization-mode=RBAC".to_owned(),
        // A Pod of the tests has its token from its test.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
    ];
    words.extend(flags.iter().map(|&flag| flag.to_owned()));
    words
}

fn spawn(words: &[String], port: u16) -> Process {
    let mut command = server::mortal(program());
    command.arg(format!("--secure-port={port}")).args(words);
    server::start_quietly(command)
}

/// False when it ended before.
fn becomes_ready(child: &mut Process, port: u16) -> bool {
    child.comes_up(|| {
        let mut curl = Command::new("curl");
        let url = format!("https://127.0.0.1:{port}/readyz");
        let output = curl.args(["-sk", "-m", "5", &url]).output().expect("curl is missing: install the package curl");
        output.stdout == b"ok"
    })
}
