//! Reads `kubernetes:` and `kubernetes://NAMESPACE`.

use super::document::is_name;
use crate::store::url::query_options;
use std::fmt;
use std::path::PathBuf;

/// What is None is found as `kubectl` finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub namespace: Option<String>,
    pub context: Option<String>,
    pub kubeconfig: Option<PathBuf>,
    /// The Lease that other programs use as well, in place of one that is named after the shard.
    pub lease: Option<String>,
}

impl Address {
    pub fn identity(&self) -> String {
        format!("{self} {:?} {:?}", self.context, self.kubeconfig)
    }

    pub fn read(rest: &str) -> Result<Self, String> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let namespace = match place.strip_prefix("//") {
            None if !place.is_empty() => {
                return Err("kubernetes: needs // before the namespace: write kubernetes://NAMESPACE".to_owned());
            }
            namespace => namespace.map_or("", |namespace| namespace.strip_suffix('/').unwrap_or(namespace)),
        };
        // RFC 1123: a namespace is one label.
        let is_namespace = is_name(namespace) && namespace.len() <= 63 && !namespace.contains('.');
        if !namespace.is_empty() && !is_namespace {
            return Err(
                "a namespace has up to 63 of a-z, 0-9 and - in its name: write kubernetes://NAMESPACE".to_owned()
            );
        }
        let mut options = query_options(query, "kubernetes", &["context", "kubeconfig", "lease"])?;
        let lease = options.remove("lease");
        if lease.as_deref().is_some_and(|lease| !is_name(lease)) {
            return Err("the option lease of kubernetes:// is the name of a Lease: a-z, 0-9, - and .".to_owned());
        }
        Ok(Self {
            namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
            context: options.remove("context"),
            kubeconfig: options.remove("kubeconfig").map(PathBuf::from),
            lease,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = self.namespace.as_ref().map(|namespace| format!("//{namespace}")).unwrap_or_default();
        write!(f, "kubernetes:{namespace}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_each_form_are_found() {
        for empty in ["", "//", "///"] {
            let read = Address::read(empty).unwrap();
            assert_eq!((read.namespace.as_deref(), read.to_string().as_str()), (None, "kubernetes:"), "{empty:?}");
        }
        let read = Address::read("//web?context=c&kubeconfig=%2Fk&lease=a.b").unwrap();
        assert_eq!((read.namespace.as_deref(), read.context.as_deref()), (Some("web"), Some("c")));
        assert_eq!((read.kubeconfig, read.lease.as_deref()), (Some("/k".into()), Some("a.b")));
        assert_eq!(Address::read("?context=c").unwrap().context.as_deref(), Some("c"));
    }

    #[test]
    fn what_is_no_namespace_or_lease_is_refused() {
        let long = format!("//{}", "n".repeat(64));
        for bad in ["web", "//Web", "//a.b", "//-a", "//u:p@h", "//a:6443", "//a/b", &long, "?lease=A", "?lock=x"] {
            assert!(Address::read(bad).is_err(), "{bad}");
        }
    }
}
