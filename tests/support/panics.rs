//! leaderrun with a thread that panics once the file named by `PANICS_WITH` has a line, which COMMAND writes.

use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    // A guard is this program as well, under another name.
    let is_candidate = std::env::args().next().is_some_and(|name| name.ends_with("panics"));
    if is_candidate {
        let file = std::env::var_os("PANICS_WITH").expect("the test names a file");
        std::thread::spawn(move || {
            while !std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')) {
                std::thread::sleep(Duration::from_millis(10));
            }
            panic!("as ordered");
        });
    }
    leaderrun::internals::cli::leaderrun::main()
}
