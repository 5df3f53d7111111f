//! The table of the results: a row for each fault, printed when the fault is over.

use super::super::object::{as_json, object};
use super::evidence::{Evidence, Verdict};
use crate::text::on_one_line;
use crate::time::millis;

#[derive(Clone, Debug)]
pub struct Row {
    pub fault: String,
    pub verdict: Verdict,
    /// None if it was not run.
    pub evidence: Option<Evidence>,
}

impl Row {
    fn words(&self) -> (&'static str, Option<&str>) {
        match &self.verdict {
            Verdict::Held => ("held", None),
            Verdict::Failed(why) => ("failed", Some(why)),
            Verdict::NotRun(why) => ("not run", Some(why)),
        }
    }

    pub fn as_json(&self) -> String {
        let (verdict, why) = self.words();
        let evidence = self.evidence.as_ref();
        as_json(&object! {
            fault: &self.fault,
            verdict,
            why,
            overlap_ms: evidence.map(|evidence| millis(evidence.overlap)),
            orphans: evidence.map(|evidence| evidence.orphans),
            terms: evidence.map(|evidence| evidence.terms),
            terms_rise: evidence.map(|evidence| evidence.terms_rise),
            handover_ms: evidence.and_then(Evidence::handover).map(millis),
        })
    }

    pub fn as_text(&self) -> String {
        let evidence = self.evidence.as_ref();
        let terms = evidence.map(|evidence| match evidence.terms {
            0 => "none",
            _ if !evidence.terms_rise => "fell",
            1 => "one",
            _ => "rose",
        });
        let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let verdict = match self.words() {
            (verdict, Some(why)) => format!("{verdict}: {}", on_one_line(why.to_owned())),
            (verdict, None) => verdict.to_owned(),
        };
        line([
            &self.fault,
            &cell(evidence.map(|evidence| format!("{}ms", millis(evidence.overlap)))),
            &cell(evidence.map(|evidence| evidence.orphans.to_string())),
            &cell(terms.map(str::to_owned)),
            &cell(evidence.and_then(Evidence::handover).map(|gap| format!("{}ms", millis(gap)))),
            &verdict,
        ])
    }
}

pub fn header() -> String {
    line(["FAULT", "OVERLAP", "ORPHANS", "TERMS", "HANDOVER", "VERDICT"])
}

/// Rows are printed one by one, so the widths are fixed.
fn line([fault, overlap, orphans, terms, handover, verdict]: [&str; 6]) -> String {
    format!("{fault:<15}  {overlap:<7}  {orphans:<7}  {terms:<5}  {handover:<8}  {verdict}")
}
