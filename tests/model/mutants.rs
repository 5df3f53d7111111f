//! The protections, taken away one at a time, in the adapter around the machines: src/ is as it is. Each time the model
//! finds what the protection was for. A mutant names the faults that it takes.

use crate::golden::golden_line;
use crate::note::note;
use crate::store::{Id, Kind};
use crate::world::{Breach, Faults, World};
use crate::{explore, pin_breach, world};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The driver passes the instant of the reply as that of the request.
    CountFromReply,
    /// The margin covers the slewing of the clocks, and not the time that a kill takes.
    NoMargin,
    /// The margin covers the time that a kill takes, and not the slewing.
    MarginWithoutSlew,
    /// The tree counts as dead when it was asked to end.
    ReleaseBeforeDead,
    /// A takeover overwrites whatever the record has become since it was judged.
    TakeoverWithoutComparing,
    /// The guard's timer does not fire.
    GuardIgnoresDeadline,
    /// Neither the backstop's timer fires nor the kernel's, which kills a frozen guard.
    BackstopIgnoresDeadline,
    /// The candidate does not kill a tree that guard and backstop let live.
    CandidateNeverSeizes,
    /// "Somebody else holds it" is taken for "renewed".
    LossTakenForRenewal,
    /// "No answer" is taken for "renewed".
    SilenceTakenForRenewal,
    /// A definite loss is taken for a passing error.
    LossIgnored,
    /// A renewal writes the record even if the session does not hold it.
    RenewalOfAnySession,
    /// A renewal that comes after its successor counts.
    RenewalsOutOfOrder,
    /// A release deletes the record even if another session holds it.
    ReleaseOfAnySession,
    /// A release of an earlier leadership ends a later one of the same session.
    ReleaseOfAnyTerm,
    /// A session that claims what it holds gets the same term again.
    TermKeptOnSecondClaim,
    /// A store that was wiped begins again with term 1.
    TermsForgotten,
    /// A claim is granted although the store may have forgotten a leader.
    YoungMarkerIgnored,
    /// A write over a version applies in whichever incarnation of the server.
    VersionWithoutIncarnation,
    /// The version of an absence is the same after the server was emptied.
    AbsenceWithoutMarker,
    /// A lower term than one that was seen is taken as it is.
    FallenTermIgnored,
    /// A document of an earlier renewal than one that was seen is taken as it is, if its term is the same.
    OlderRenewalIgnored,
    /// A lease ends by the server's date, whatever the process saw of it.
    DateAlone,
    /// A wait for the tree of an earlier leader is told to the claim that found it, and not written down.
    WaitForgotten,
    /// It is counted from before the request, as a lease is.
    WaitFromRequest,
    /// Nothing but the document says that the shard was led.
    NoLedMark,
    /// What says so is read before the claim's put.
    LedMarkReadBefore,
    /// The lock beside the lease is let go once the candidate is gone.
    LockOfCandidateAlone,
    /// Deadlines count on a clock that stops during suspends.
    ClockStopsInSuspend,
    /// Orders are read before the claim, when there were none, and not again after the grant.
    OrdersReadBeforeClaim,
    /// Orders that come with the answer to a renewal are taken for none.
    OrdersWithRenewalIgnored,
    /// A guard that is frozen is not killed at the deadline.
    NoKillTimer,
    /// A PID namespace goes on when its guard has died.
    InitOutlivesGuard,
    /// What runs beside a standby counts as dead when it was asked to end.
    StandbyTasksTakenForDead,
}

/// The shortest way to `breach` is found, and shown.
fn breaks(mutant: impl std::fmt::Debug, breach: Breach, world: World) {
    let store = world.store;
    let (states, found) = explore(World { breaches: vec![breach], ..world }, true);
    let found = found.unwrap_or_else(|| panic!("{mutant:?} breaks nothing in {states} states"));
    note(&format!("mutant\t{mutant:?}\t{breach:?}\t{states}"));
    println!("{mutant:?}: {breach:?} after {} steps ({states} states)\n{}", found.steps, found.story);
    pin_breach(&format!("mutant {mutant:?}, {store:?}, {breach:?}"), &found);
}

/// Faults strike the first candidate alone, to keep the space small; those of the server strike all.
fn mutated(mutant: Mutant, store: Kind, faults: Faults) -> World {
    World { mutant: Some(mutant), victim: Some(Id(0)), ..world(store, faults, 16) }
}

macro_rules! mutants {
    ($($name:ident: $mutant:ident, $store:ident, { $($fault:ident: $times:literal),* } => $breach:ident
        $(, where $field:ident: $value:expr)?;)*) => {$(
        #[test]
        fn $name() {
            let faults = Faults { $($fault: $times,)* ..Faults::NONE };
            let world = mutated(Mutant::$mutant, Kind::$store, faults);
            $(let world = World { $field: $value, ..world };)?
            breaks(Mutant::$mutant, Breach::$breach, world);
        }
    )*};
}

mutants! {
    counting_from_the_reply: CountFromReply, Comparing, { freezes: 1 } => TwoTrees;
    no_margin: NoMargin, Comparing, { cuts: 1 } => TwoTrees;
    a_margin_that_forgets_the_slewing: MarginWithoutSlew, Comparing, { cuts: 1, freezes: 1 } => TwoTrees;
    releasing_before_the_tree_is_dead: ReleaseBeforeDead, Touching, { stops: 1 } => TwoTrees;
    a_release_of_a_living_trees_lease: ReleaseBeforeDead, Touching, { stops: 1 } => ReleasedAlive;
    taking_over_without_comparing_the_record: TakeoverWithoutComparing, Comparing, { held_up: 1 } => TwoTrees;
    a_guard_that_ignores_the_deadline: GuardIgnoresDeadline, Comparing, { freezes: 2 } => TwoTrees;
    no_backstop: BackstopIgnoresDeadline, Comparing, { freezes: 2 } => TwoTrees;
    a_candidate_that_never_seizes: CandidateNeverSeizes, Comparing, { freezes: 2, cuts: 1 } => TwoTrees;
    a_loss_taken_for_a_renewal: LossTakenForRenewal, Touching, { revocations: 1 } => TwoTrees;
    silence_taken_for_a_renewal: SilenceTakenForRenewal, Touching, { cuts: 1 } => TwoTrees;
    a_renewal_of_any_session: RenewalOfAnySession, Touching, { cuts: 1, held_up: 1 } => TwoTrees;
    renewals_out_of_order: RenewalsOutOfOrder, Comparing, { held_up: 1, freezes: 1 } => TwoTrees;
    a_release_of_an_earlier_term: ReleaseOfAnyTerm, Touching, { kills: 1, doubled: 1 } => TwoTrees;
    a_term_kept_on_a_second_claim: TermKeptOnSecondClaim, Touching, { cuts: 1 } => TermNotRisen;
    terms_forgotten_with_the_records: TermsForgotten, Touching, { deletions: 1 } => TermNotRisen;
    a_wipe_that_nobody_waits_for: YoungMarkerIgnored, Touching, { wipes: 1 } => TwoTrees;
    a_version_that_outlives_its_server: VersionWithoutIncarnation, Touching, { failovers: 1, held_up: 1 } => TwoTrees;
    an_absence_that_outlives_a_wipe: AbsenceWithoutMarker, Touching, { wipes: 1, held_up: 1 } => TwoTrees;
    a_marker_that_is_not_read_again: AbsenceWithoutMarker, Comparing, { wipes: 1, held_up: 1 } => TwoTrees;
    an_older_copy_taken_as_it_is: FallenTermIgnored, Touching, { restores: 1 } => TwoTrees;
    an_older_copy_of_the_same_term: OlderRenewalIgnored, Touching, { restores: 1, cuts: 1 } => TwoTrees,
        where horizon: 18;
    a_date_that_ends_a_lease_by_itself: DateAlone, Touching, { clock_steps: 1 } => TwoTrees;
    a_wait_that_is_told_only_once: WaitForgotten, Touching, { revocations: 1, held_up: 2 } => TwoTrees;
    a_document_that_alone_says_who_led: NoLedMark, Touching, { deletions: 1 } => TwoTrees;
    a_led_mark_that_is_read_too_early: LedMarkReadBefore, Touching, { deletions: 1, held_up: 1 } => TwoTrees;
    a_lock_that_ends_with_the_candidate: LockOfCandidateAlone, Touching, { kills: 1, other_locks: 1 } => BesideOther;
    orders_that_are_older_than_the_grant: OrdersReadBeforeClaim, Touching, { orders: 1 } => StartedUnderPause;
    orders_that_come_with_a_renewal_ignored: OrdersWithRenewalIgnored, Touching, { orders: 1 } => PauseUnheard;
    a_clock_that_stops_in_suspend: ClockStopsInSuspend, Comparing, { suspends: 1 } => TwoTrees;
    a_frozen_guard_that_no_timer_kills: NoKillTimer, Touching, { freezes: 3 } => TwoTrees, where contained: true;
    a_namespace_that_outlives_its_guard: InitOutlivesGuard, Touching, { kills: 3 } => TwoTrees, where contained: true;
    what_was_only_asked_to_end_taken_for_dead: StandbyTasksTakenForDead, Touching, { kills: 1 } => BesideStandby,
        where has_standby_tasks: true;
    a_release_of_any_session: ReleaseOfAnySession, Touching, { stops: 1, doubled: 1 } => TwoTrees,
        where clocks: vec![vec![55, 60, 60]];
}

/// They may have been renewed while the claim was under way. Three faults, so depth first: any way to it will do. The
/// first candidate is the one that waits, and a slow clock would have it wait for long enough.
#[test]
fn a_wait_counted_from_the_request() {
    let faults = Faults { held_up: 1, freezes: 1, deletions: 1, ..Faults::NONE };
    let world = mutated(Mutant::WaitFromRequest, Kind::Comparing, faults);
    let world = World { clocks: vec![vec![60, 60]], breaches: vec![Breach::TwoTrees], horizon: 12, ..world };
    let (states, found) = explore(world, false);
    let found = found.expect("a wait that is too short");
    println!("WaitFromRequest: {:?} after {} steps ({states} states)\n{}", found.breach, found.steps, found.story);
    // Some way, not the shortest: how long it is says nothing.
    golden_line("model", "mutant WaitFromRequest", &format!("{:?}", found.breach));
}

/// The bound of a twelfth is used up to the last tick.
#[test]
fn a_clock_that_is_a_tenth_slow() {
    let faults = Faults { cuts: 1, freezes: 1, ..Faults::NONE };
    let world = World { clocks: vec![vec![54, 60]], victim: Some(Id(0)), ..world(Kind::Comparing, faults, 16) };
    breaks("a clock a tenth slow", Breach::TwoTrees, world);
}

/// Not every protection is one against a second tree: to heed a definite loss only saves time, for the deadline holds.
#[test]
fn a_loss_that_is_ignored_harms_nobody() {
    let world = World { mutant: Some(Mutant::LossIgnored), ..world(Kind::Comparing, Faults::any(1), 20) };
    crate::holds("a definite loss ignored", world, 30_000, &[crate::world::Met::DefiniteLoss]);
}
