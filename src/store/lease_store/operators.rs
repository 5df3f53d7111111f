//! What operators ask for.
//!
//! The hazard: an operator may end a lease while its tree still runs. So a revocation turns the rest of the lease into
//! a wait. And no document of a shard is deleted: a deletion that comes late would delete the next leader's lease.

use super::document::LedMark;
use super::documents::{Ends, Key, Life, List, Listed, Marking, Over, Part};
use super::marker::Reader;
use super::seen::Standing;
use super::{LeaseStore, MOST_ATTEMPTS, left_behind, trial};
use crate::lease::{Candidate, Shard, Term, show};
use crate::store::foreign_lock;
use crate::store::server_clock::{Wait, renewed_ago};
use crate::store::{Administration, ErrorKind, Finding, Holder, Release, Report, StoreError, Verdict};
use crate::time::BootInstant;
use std::collections::HashMap;
use std::time::Duration;

/// A line about the marker. `new`: it was written just now.
fn about_marker(what: &str, new: bool) -> String {
    if new {
        format!("recorded in {what} that it remembers leases from now on")
    } else {
        format!("{what} has recorded since when it remembers leases")
    }
}

#[async_trait::async_trait]
impl Administration for LeaseStore {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let sent = BootInstant::now();
        let standing = self.look(shard, false, false, Reader::Look).await?;
        let report = self.report(shard, &standing, sent);
        if report.holder.is_some() {
            return Ok(report);
        }
        Ok(Report { holder: self.lock_holder(shard).await?, ..report })
    }

    /// No report names the lock of other programs: it belongs to one shard, and nothing says to which.
    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
        let mut list = Vec::new();
        let mut sent = BootInstant::now();
        let mut each_listed = |listed: Vec<Listed>| {
            let (marks, leases): (Vec<_>, Vec<_>) = listed.into_iter().partition(|listed| listed.part == Part::Led);
            let mut marks: HashMap<_, _> = marks.into_iter().map(|mark| (mark.shard, mark.found)).collect();
            for Listed { shard, found, .. } in leases {
                let led = marks.remove(&shard);
                let report = match self.understand(&shard, found) {
                    Ok(standing) if standing.document.as_ref().is_some_and(|document| !document.is_listed()) => {
                        continue;
                    }
                    Ok(standing) => {
                        let is_ours = standing.document.is_some();
                        let report = self.report(&shard, &Standing { led, ..standing }, sent);
                        // Another program that led before any of ours, and nobody since.
                        if !is_ours && report == Report::default() {
                            continue;
                        }
                        report
                    }
                    Err(_) => Report { holder: Some(Holder::unknown()), last_term: None },
                };
                list.push((shard, report));
            }
            for (shard, mark) in marks {
                if let Some(last_term) = LedMark::read(&mark).shared.last_term() {
                    list.push((shard, Report { holder: None, last_term: Some(last_term) }));
                }
            }
            sent = BootInstant::now();
        };
        self.documents.list(List::Shards(prefix), &mut each_listed).await?;
        list.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(list)
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        for _ in 0..MOST_ATTEMPTS {
            let sent = BootInstant::now();
            let standing = self.look(shard, false, false, Reader::Writer).await?;
            let names_it = standing.found.leadership().is_some_and(|leadership| leadership.term == term);
            if !names_it || self.holder(shard, &standing, sent).is_none() {
                return Ok(Release::NotHeld);
            }
            let lease = standing.longest_lease();
            let mut draft = self.continued(shard, &standing);
            // A renewal may move the end before this is written. Then the later end counts.
            let rest = Wait { until_millis: self.documents.server_millis(sent), duration: lease };
            // A server without a clock says itself when the lease is over.
            if self.properties.has_clock {
                draft.set_wait(Some(draft.wait().map_or(rest, |earlier| rest.after(earlier))));
            }
            (draft.lease, draft.revoked) = (None, Some(term.0));
            let over = Over::Text(&standing.found);
            if self.rewrite(shard, &draft, 0, Ends::Keep, over).await?.is_some() {
                return Ok(Release::Released);
            }
        }
        Err(StoreError { kind: ErrorKind::NotApplied, ..self.too_fast(Key::Shard(shard)) })
    }

    /// The document stays, with its term alone.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        self.let_go(candidate, term).await?;
        let shard = &candidate.shard;
        if !self.look(shard, false, false, Reader::Writer).await?.is_led_by(candidate, term) {
            return Ok(Release::NotHeld);
        }
        self.remove_notes(shard).await?;
        self.give_back(candidate, term, true).await
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let mut done = self.documents.prepare().await?;
        let place = self.documents.place();
        if self.properties.marking != Marking::ByInit {
            let is_new = self.refresh_marker(Reader::Writer).await?;
            done.push(about_marker(&place, is_new == Some(true)));
            return Ok(done);
        }
        if self.read_marker(Reader::Look).await?.is_some() {
            let step = about_marker(&place, false);
            done.push(format!("{step}: its server was tested before, and leaderctl store check tests it again"));
            return Ok(done);
        }
        done.push(trial::run(&*self.documents).await?.map_err(StoreError::misconfigured)?);
        self.write_marker(true).await?;
        done.push(about_marker(&place, true));
        Ok(done)
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        if self.properties.marking == Marking::ByInit && self.read_marker(Reader::Look).await?.is_none() {
            return Ok(());
        }
        self.write_marker(false).await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = self.check_documents().await?;
        if let Some(lock) = self.documents.lock() {
            findings.extend(foreign_lock::findings(lock).await?);
        }
        Ok(findings)
    }
}

impl LeaseStore {
    async fn check_documents(&self) -> Result<Vec<Finding>, StoreError> {
        let place = self.documents.place();
        let mut findings = self.documents.identify().await?;
        if findings.iter().any(|finding| finding.verdict == Verdict::Bad) {
            return Ok(findings);
        }
        if !trial::rights(&*self.documents, &mut findings).await? {
            return Ok(findings);
        }
        match trial::run(&*self.documents).await {
            Ok(Ok(honest)) => findings.push(Finding::good(honest)),
            Ok(Err(dishonest)) => {
                findings.push(Finding::bad(dishonest));
                return Ok(findings);
            }
            // Reported already.
            Err(error) if error.kind == ErrorKind::Denied => {}
            Err(error) => return Err(error),
        }
        let is_for_all = self.properties.marking == Marking::ByAnyone;
        match self.refresh_marker(if is_for_all { Reader::Writer } else { Reader::Look }).await {
            Ok(Some(false)) => findings.push(Finding::good(about_marker(&place, false))),
            Ok(Some(true)) => findings.push(Finding::doubtful(format!(
                "{place} is new, or was started, promoted or wiped since leaderrun last used it: no new leader for one \
                 lease"
            ))),
            Ok(None) if self.properties.marking != Marking::ByInit => findings.push(Finding::doubtful(format!(
                "{place} has not recorded since when it remembers leases, so the first leader waits one lease: run \
                 leaderctl store init"
            ))),
            Ok(None) => findings.push(Finding::bad(format!(
                "{place} has not recorded since when it remembers leases, so nobody can lead: run leaderctl store init"
            ))),
            Err(error) if error.kind == ErrorKind::Denied => return Ok(findings),
            Err(error) if error.kind == ErrorKind::Misconfigured => findings.push(Finding::bad(error.message)),
            Err(error) => return Err(error),
        }
        findings.extend(self.documents.findings().await?);
        if findings.iter().any(|finding| finding.verdict == Verdict::Bad) {
            return Ok(findings);
        }
        let sent = BootInstant::now();
        match self.get_one(Key::Marker).await {
            Ok(_) => findings.extend(self.time_findings(BootInstant::now().since(sent))),
            // Reported already.
            Err(error) if error.kind == ErrorKind::Denied => {}
            Err(error) => return Err(error),
        }
        Ok(findings)
    }

    /// What a check says of the server's clock and of a request that took this long.
    fn time_findings(&self, round_trip: Duration) -> Vec<Finding> {
        let took = format!("a round trip takes {round_trip:.1?}");
        if self.properties.tells_time || !self.properties.has_clock {
            return vec![Finding::good(took)];
        }
        let Some(bounds) = self.documents.clock().bounds(BootInstant::now()) else {
            return vec![Finding::doubtful(format!(
                "{took}; answers have no Date header, so a crashed leader's lease ends when its record has not changed \
                 for that long"
            ))];
        };
        let width = show(Duration::from_millis(bounds.upper.saturating_sub(bounds.lower)));
        let mut findings = vec![Finding::good(format!("{took}; the server's clock is known to within {width}"))];
        findings.extend(self.documents.wrong_wall_clock().map(Finding::doubtful));
        findings
    }

    fn report(&self, shard: &Shard, standing: &Standing, sent: BootInstant) -> Report {
        // A claim is granted during a wait, but nobody may say that no tree runs.
        let waits = || {
            let (_, over) = self.wait_of(shard, standing)?;
            Some(left_behind(standing, over.since(BootInstant::now())))
        };
        let holder = self.holder(shard, standing, sent).or_else(waits);
        let document = standing.document.as_ref();
        let renewed_ago = document.and_then(|document| {
            let lease = document.lease.as_ref()?.duration();
            match standing.found.ours()?.life {
                Life::Ends(ends) => renewed_ago(&self.documents.clock(), lease, ends, BootInstant::now()),
                Life::Left { at_most } => Some(lease.saturating_sub(at_most)),
                Life::Over | Life::ForEver | Life::Unchanged { .. } => None,
            }
        });
        Report { holder: holder.map(|holder| Holder { renewed_ago, ..holder }), last_term: standing.last_term() }
    }
}
