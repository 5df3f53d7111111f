//! An example, as somebody would try it: two of it. (The others are compiled.)

use crate::Place;
use crate::support::fleet::example_program;
use crate::support::prelude::*;

/// The example's lease is the default one, of 15 s, and renewed every 5 s: what is sooner has not waited for its end.
const SOON: Duration = Duration::from_secs(10);

struct Example {
    child: Process,
    said: PathBuf,
}

impl Example {
    fn start(place: &Place, name: &str) -> Self {
        let said = place.fleet.scratch.path().join(format!("{name}.said"));
        let mut command = Command::new(example_program("background_job"));
        command.arg(&place.url).env_remove("LEADERRUN_STORE").stdin(Stdio::null());
        command.stdout(fs::File::create(&said).unwrap());
        Self { child: Process::start(&mut command), said }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap()
    }

    fn works(&self) -> bool {
        self.said().contains("pass 3")
    }

    fn says(&self, what: &str) {
        wait_until_or(&format!("it says {what}"), || self.said(), || self.said().contains(what));
    }
}

#[test]
fn a_background_job_runs_once() {
    let place = Place::local();
    let (one, two) = (Example::start(&place, "one"), Example::start(&place, "two"));
    wait_until_or("one of them works", String::new, || one.works() || two.works());
    let (mut leader, other) = if one.works() { (one, two) } else { (two, one) };
    assert!(!other.said().contains("pass"), "{}", other.said());
    leader.child.signal(Signal::SIGINT);
    let begun = Instant::now();
    assert!(leader.child.ends().success());
    other.says("pass 1");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let mut third = Example::start(&place, "three");
    drop(other);
    third.says("pass 1");
    third.child.signal(Signal::SIGTERM);
    assert!(third.child.ends().success());
}
