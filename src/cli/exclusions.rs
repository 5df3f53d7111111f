//! Which options exclude each other.
//!
//! The hazard: the same option may be given on the command line, in the environment and in a file, by people who do not
//! know of each other. Two that exclude each other are a mistake where one person gave both; otherwise the one that was
//! given nearer to the command line counts, and the other one is ignored.

use clap::ArgMatches;
use clap::parser::ValueSource;

/// Two options, by their long names, and when both together are a mistake.
#[derive(Debug)]
pub struct Exclusion {
    pub one: &'static str,
    pub other: &'static str,
    mistake: Mistake,
    advice: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// A mistake if both come from the same place.
    AtOnePlace,
    /// A mistake unless the first is nearer to the command line. The first makes COMMAND a job, and settings for
    /// services are not meant for a job.
    UnlessNearer,
    /// Always a mistake.
    Always,
}
use Mistake::{Always, AtOnePlace, UnlessNearer};

const ONE: &str = "use one of them";
const RETRY: &str = "use --retry-failed to repeat a job";
const ONE_TERM: &str = "a job runs in one term";
const RUNS_ONCE: &str = "a job runs once, whichever candidate leads";

/// Every pair. A pair does not apply if an earlier one has overruled one of its options.
pub const ALL: [Exclusion; 11] = [
    Exclusion { one: "store", other: "store-file", mistake: AtOnePlace, advice: ONE },
    Exclusion { one: "no-wait", other: "wait", mistake: AtOnePlace, advice: ONE },
    Exclusion { one: "quiet", other: "verbose", mistake: AtOnePlace, advice: ONE },
    Exclusion { one: "every", other: "once", mistake: AtOnePlace, advice: ONE },
    Exclusion { one: "every", other: "restart", mistake: UnlessNearer, advice: RETRY },
    Exclusion { one: "once", other: "restart", mistake: UnlessNearer, advice: RETRY },
    Exclusion { one: "every", other: "relinquish", mistake: UnlessNearer, advice: ONE_TERM },
    Exclusion { one: "once", other: "relinquish", mistake: UnlessNearer, advice: ONE_TERM },
    Exclusion { one: "slots", other: "every", mistake: Always, advice: RUNS_ONCE },
    Exclusion { one: "slots", other: "once", mistake: Always, advice: RUNS_ONCE },
    // The leader named first of several is another one at each check, so the hook would run again and again.
    Exclusion { one: "slots", other: "on-leader-change", mistake: Always, advice: "there are several leaders at once" },
];

impl Exclusion {
    /// Whether the nearer one of the two may overrule the other.
    #[must_use]
    pub fn is_decided_by_place(&self) -> bool {
        self.mistake != Always
    }

    /// The message if both were given, under these names.
    #[must_use]
    pub fn message(&self, one: &str, other: &str) -> String {
        format!("{one} and {other} exclude each other: {}", self.advice)
    }
}

/// The options that were given and do not count, by their long names.
#[derive(Debug, Default)]
pub struct Overruled(Vec<&'static str>);

impl Overruled {
    /// Finds the overruled options of `matches`.
    ///
    /// # Errors
    /// One line that names two options which cannot be used together.
    pub fn find(matches: &ArgMatches) -> Result<Self, String> {
        let mut overruled = Self::default();
        for exclusion in &ALL {
            let Exclusion { one, other, mistake, .. } = *exclusion;
            let source = |name| if overruled.has(name) { None } else { source_of(matches, name) };
            let (Some(of_one), Some(of_other)) = (source(one), source(other)) else { continue };
            let is_mistake = match mistake {
                AtOnePlace => of_one == of_other,
                UnlessNearer => of_one <= of_other,
                Always => true,
            };
            if is_mistake {
                return Err(exclusion.message(&as_given(one, of_one), &as_given(other, of_other)));
            }
            overruled.0.push(if of_other > of_one { one } else { other });
        }
        Ok(overruled)
    }

    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.contains(&name)
    }
}

/// Whether this value means the same as leaving the option out.
#[must_use]
pub fn is_off(name: &str, value: &str) -> bool {
    matches!((name, value), ("no-wait" | "quiet", "false") | ("restart", "never") | ("verbose", "0"))
}

/// None where an option is off, or not one of this program.
fn source_of(matches: &ArgMatches, name: &str) -> Option<ValueSource> {
    let id = &name.replace('-', "_");
    let is_on = if let Ok(flag) = matches.try_get_one::<bool>(id) {
        // A variable may spell this in several ways.
        flag == Some(&true)
    } else {
        let mut values = matches.try_get_raw(id).ok().flatten()?;
        values.any(|value| !is_off(name, &value.to_string_lossy()))
    };
    if is_on { matches.value_source(id) } else { None }
}

/// The option's name as it was given.
#[must_use]
pub fn as_given(name: &str, source: ValueSource) -> String {
    match source {
        ValueSource::EnvVariable => format!("LEADERRUN_{}", name.replace('-', "_").to_uppercase()),
        ValueSource::DefaultValue => format!("{name} in the configuration file"),
        _ => format!("--{name}"),
    }
}
