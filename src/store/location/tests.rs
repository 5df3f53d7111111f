use super::*;
use crate::fuzz;

#[test]
fn a_directory_may_be_written_in_three_ways() {
    for url in ["file:/a/b", "file:///a/b"] {
        assert_eq!(Location::from_url(url), Ok(Location::File { directory: "/a/b".into() }));
    }
    assert_eq!(Location::from_url("file:"), Location::by_default());
}

#[test]
fn a_slip_in_a_url_does_not_name_another_store() {
    for (url, words) in [
        ("file:/dir?x=1", "file: takes no options: leave out '?x=1'"),
        ("file:/dir#y", "file: takes no fragment: leave out '#y'"),
        ("file:/dir%20x", "file: takes no percent-encoding"),
        ("file:/dir ", "begins or ends with a blank"),
        ("file: /dir", "begins or ends with a blank"),
        (" file:/dir", "begins or ends with a blank"),
        ("file:/dir\n", "begins or ends with a blank or a line break"),
        ("file:/dir\u{a0}", "begins or ends with a blank"),
        ("dynamodb://locks ", "begins or ends with a blank"),
        ("redis://h/0 ?prefix=x", "has a blank in it"),
    ] {
        let error = Location::from_url(url).unwrap_err();
        assert!(error.contains(words), "{url:?}: {error}");
    }
    assert!(!Location::from_url("file:u:12?hunter2@h").unwrap_err().contains("hunter2"));
    for url in ["file:/a b", "file:/100%", "file:/100%/x", "file:/a%zz"] {
        assert!(Location::from_url(url).is_ok(), "{url}");
    }
}

#[cfg(all(feature = "etcd", feature = "postgres", feature = "redis"))]
#[test]
fn a_blank_is_refused_in_the_url_of_every_store() {
    for url in ["etcd://h/lr", "postgres://h/lr", "redis://h?prefix=x", "redis://h"] {
        assert!(Location::from_url(url).is_ok(), "{url}");
        for slip in [format!("{url} "), format!("{url}\t"), format!("{url}\n"), format!(" {url}")] {
            let error = Location::from_url(&slip).unwrap_err();
            assert!(error.contains("begins or ends with a blank"), "{slip:?}: {error}");
        }
    }
    for slip in ["etcd://h/l r", "etcd://h/lr ?ca=/x", "postgres://h/lr%20", "etcd://h//lr", "etcd://h/a//lr"] {
        assert!(Location::from_url(slip).is_err(), "{slip}");
    }
}

#[test]
fn a_path_or_an_address_is_answered_with_the_url_that_was_meant() {
    for (url, meant) in [
        ("/tmp/x", "file:/tmp/x"),
        ("127.0.0.1:6379", "redis://127.0.0.1:6379"),
        ("db.example:5432", "postgres://db.example:5432/DATABASE"),
        ("[::1]:2379", "etcd://[::1]:2379/PREFIX"),
        ("redis//h", "redis://h"),
        ("postgres//db.internal:5433", "postgres://db.internal:5433"),
        ("redis//me:secret@h", "redis://..."),
        ("rediss//h:secret", "rediss://..."),
    ] {
        let error = Location::from_url(url).unwrap_err();
        assert_eq!(error, format!("the store URL has no scheme: did you mean {meant}?"));
    }
    for url in ["127.0.0.1:9999", "app:secret@db:6379", "app:6379/x:6379", "//app:secret@db", "app:secret:6379"] {
        assert!(!Location::from_url(url).unwrap_err().contains("did you mean"), "{url}");
    }
}

#[test]
fn a_directory_does_not_depend_on_where_the_program_runs() {
    let error = Location::from_url("file:a/b").unwrap_err();
    assert!(error.contains("working directory: write file:/") && error.ends_with("/a/b"), "{error}");
    let error = Location::from_url("file:app:secret@db").unwrap_err();
    assert!(error.ends_with("write file:/DIR"), "{error}");
}

#[cfg(feature = "dynamodb")]
#[test]
fn a_table_may_have_options() {
    let url = "dynamodb://locks?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1%3A8000&profile=p";
    let expected = Location::DynamoDb(super::super::dynamodb::Address {
        table: "locks".into(),
        region: Some("eu-west-1".into()),
        endpoint: Some("http://127.0.0.1:8000".into()),
        profile: Some("p".into()),
    });
    assert_eq!(Location::from_url(url), Ok(expected));
}

#[test]
fn nonsense_is_refused() {
    for bad in [
        "",
        "locks",
        ":",
        "://",
        "file://host/x",
        "dynamodb:locks",
        "dynamodb://",
        "dynamodb://ab",
        "dynamodb://a/b/c",
        "dynamodb://locks?region",
        "dynamodb://locks?region=",
        "dynamodb://locks?zone=1",
        "dynamodb://locks?region=a&region=b",
        "dynamodb://locks?endpoint=nowhere",
        "dynamodb://locks?endpoint=http://user:secret@host",
        "zookeeper://h",
        "FILE:/x",
        "dynamodb://user:secret@locks",
        "file:/a\0b",
        "file:/a\nb",
    ] {
        assert!(Location::from_url(bad).is_err(), "{bad}");
    }
}

/// Checks that a location is the same after it was written as a URL and read again.
fn assert_is_stable(url: &str, location: &Location) {
    let (scheme, _) = url.split_once(':').expect("it was accepted");
    let written = match location {
        Location::File { directory } => {
            let directory = directory.to_str().expect("it was text");
            if directory.starts_with('/') { format!("//{directory}") } else { directory.to_owned() }
        }
        #[cfg(feature = "dynamodb")]
        Location::DynamoDb(super::super::dynamodb::Address { table, region, endpoint, profile }) => {
            let mut options = url::form_urlencoded::Serializer::new(String::new());
            for (name, value) in [("profile", profile), ("endpoint", endpoint), ("region", region)] {
                options.extend_pairs(value.as_ref().map(|value| (name, value)));
            }
            format!("//{table}?{}", options.finish())
        }
        #[cfg(feature = "bucket")]
        Location::Bucket(address) => {
            let mut options = url::form_urlencoded::Serializer::new(String::new());
            let super::super::bucket::Address { profile, endpoint, region, path_style, tls, .. } = address;
            let ca = tls.ca.as_ref().and_then(|path| path.to_str());
            options.extend_pairs(ca.map(|ca| ("ca", ca)));
            for (name, value) in [("profile", profile), ("endpoint", endpoint), ("region", region)] {
                options.extend_pairs(value.as_ref().map(|value| (name, value)));
            }
            options.extend_pairs((!path_style).then_some(("path_style", "false")));
            let whole = address.to_string();
            let (_, rest) = whole.split_once(':').expect("it has a scheme");
            format!("{rest}?{}", options.finish())
        }
        #[cfg(feature = "kubernetes")]
        Location::Kubernetes(address) => {
            let super::super::kubernetes::Address { namespace, context, kubeconfig, lease } = address;
            let kubeconfig = kubeconfig.as_ref().and_then(|path| path.to_str()).map(str::to_owned);
            let mut options = url::form_urlencoded::Serializer::new(String::new());
            for (name, value) in [("context", context), ("kubeconfig", &kubeconfig), ("lease", lease)] {
                options.extend_pairs(value.as_ref().map(|value| (name, value)));
            }
            let namespace = namespace.as_ref().map(|namespace| format!("//{namespace}")).unwrap_or_default();
            format!("{namespace}?{}", options.finish())
        }
        #[cfg(any(feature = "redis", feature = "postgres", feature = "mysql", feature = "nats", feature = "etcd"))]
        _ => {
            const OPTIONS: [&str; 27] = [
                "prefix",
                "wait",
                "lock_key",
                "ca",
                "cert",
                "key",
                "db",
                "sentinel_user",
                "sentinel_password",
                "schema",
                "table",
                "advisory_lock",
                "sslmode",
                "sslrootcert",
                "sslcert",
                "sslkey",
                "application_name",
                "host",
                "port",
                "creds",
                "nkey",
                "replicas",
                "socket",
                "ssl-mode",
                "ssl-ca",
                "ssl-cert",
                "ssl-key",
            ];
            let rest = &url[scheme.len() + 1..];
            // The path of a file may have empty parts.
            let like = if scheme == "redis+unix" { "redis+unix" } else { "any" };
            match super::super::url::StoreUrl::read(like, rest, &OPTIONS) {
                Ok(read) => read.written(),
                // A URL may name the directory of a socket in place of a host.
                Err(message) => {
                    assert!(scheme.starts_with("postgres") && rest.contains('%'), "{message}");
                    rest.to_owned()
                }
            }
        }
    };
    assert_eq!(Location::from_url(&format!("{scheme}:{written}")).as_ref(), Ok(location), "{written}");
}

fn bend_urls(what: &str, seeds: &[&str]) {
    fuzz::bent_text(what, seeds, |url, _| {
        let read = Location::from_url(url);
        match &read {
            Ok(location) => assert_is_stable(url, location),
            Err(message) => {
                // The scheme may be as long as the text that a user pasted.
                let message: String = message.chars().take(1000).collect();
                fuzz::assert_is_one_line(&message);
                let named = [
                    "://",
                    "file:",
                    "scheme",
                    "store URL",
                    "no store is called",
                    "was built without",
                    "endpoint=",
                    "DynamoDB",
                    "host=",
                    "ca, cert",
                ];
                assert!(named.iter().any(|part| message.contains(part)), "{message}");
            }
        }
        (&read).into()
    });
}

#[test]
fn a_million_file_urls_are_read_or_refused() {
    bend_urls("file: URL", &["file:/a/b", "file:///var/lib/leaderrun", "file:a/b", "file:/a b/ä"]);
}

#[cfg(feature = "dynamodb")]
#[test]
fn a_million_dynamodb_urls_are_read_or_refused() {
    bend_urls(
        "dynamodb:// URL",
        &[
            "dynamodb://locks",
            "dynamodb://locks?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1%3A8000&profile=p",
            "dynamodb://my_table.1-a?endpoint=https://host.example",
        ],
    );
}

#[cfg(feature = "redis")]
#[test]
fn a_million_redis_urls_are_read_or_refused() {
    bend_urls(
        "redis:// URL",
        &[
            "redis://h",
            "rediss://me:p%40ss@[::1]:7/3?prefix=a:&wait=2&ca=/ca&cert=/c&key=/k",
            "redis+unix://:pw@/run/redis.sock?db=4",
            "redis+sentinel://:pw@one,two:7/mymaster/5?sentinel_user=s&sentinel_password=t",
            "rediss+sentinel://one/m",
            "redis://h?lock_key=maplefile:leader:lock",
        ],
    );
}

#[cfg(feature = "postgres")]
#[test]
fn a_million_postgres_urls_are_read_or_refused() {
    bend_urls(
        "postgres:// URL",
        &[
            "postgres://app:p%40ss@one,two:6000/main?schema=s&table=my%20locks&advisory_lock=-7&sslmode=verify-full",
            "postgresql://h/db?sslrootcert=/ca&sslcert=/c&sslkey=/k&application_name=x",
            "postgres:///db?host=/tmp&port=7000",
            "postgres://u@%2Ftmp:7000/db",
            "postgres://h/db?sslrootcert=system",
        ],
    );
}

#[cfg(feature = "mysql")]
#[test]
fn a_million_mysql_urls_are_read_or_refused() {
    bend_urls(
        "mysql:// URL",
        &[
            "mysql://app:p%40ss@one,two:6000/main?table=my%20locks&ssl-mode=VERIFY_IDENTITY",
            "mariadb://h/db?ssl-ca=/ca&ssl-cert=/c&ssl-key=/k",
            "mysql:///db?socket=/run/mysqld/mysqld.sock",
        ],
    );
}

#[cfg(feature = "nats")]
#[test]
fn a_million_nats_urls_are_read_or_refused() {
    bend_urls(
        "nats:// URL",
        &[
            "nats://u:p%40x@one,two:4333/locks?replicas=3",
            "nats://s3cr3t@h/b",
            "nats+tls://h/b?creds=/x.creds&ca=/ca",
            "nats://h/b?nkey=/x&cert=/c&key=/k",
            "nats://h/b?lock_key=c/d",
        ],
    );
}

#[cfg(feature = "kubernetes")]
#[test]
fn a_million_kubernetes_urls_are_read_or_refused() {
    bend_urls(
        "kubernetes: URL",
        &["kubernetes:", "kubernetes://web?context=a%20b&kubeconfig=/k&lease=a.b", "kubernetes:?lease=other"],
    );
}

#[cfg(feature = "etcd")]
#[test]
fn a_million_etcd_urls_are_read_or_refused() {
    bend_urls(
        "etcd:// URL",
        &[
            "etcds://u:p%40@one,two:7,[::1]/some/prefix/?ca=/a&cert=/b&key=/c",
            "etcd://h",
            "etcd://h/%2Fservices/locks",
            "etcd://u:p@h:1/x",
        ],
    );
}

#[test]
fn a_million_urls_with_passwords_that_nobody_encoded_do_not_tell_them() {
    const WORDS: [&str; 3] = ["Kiwi7Qx", "Plum8Zy", "Pear9Wv"];
    let ends: [&[u8]; 7] = [
        b"h",
        b"h:1/0?prefix=a&wait=2",
        b"one,two:7/m/5?sentinel_user=s",
        b"h/db?schema=s&sslmode=require&advisory_lock=7",
        b"h/b?nkey=/n&replicas=3",
        b"[::1]/some/prefix?ca=/a&cert=/b&key=/c",
        b"/run/redis.sock?db=4",
    ];
    let schemes: Vec<&str> = schemes().chain(["file", "redi", "htps", "dynamo db", ""]).collect();
    fuzz::run("store URL with a password", |source, input| {
        let mut password = WORDS[0].to_owned();
        for word in &WORDS[1..=source.below(3)] {
            password.push_str(
                source.of::<&str>(&["@", "/", "?", "#", "&", "=", ":", ",", "%41", "%", " ", "[", "]", "+", "\\"]),
            );
            password.push_str(word);
        }
        let end = String::from_utf8_lossy(&source.bend(&ends)).into_owned();
        let (scheme, option) = (*source.of(&schemes), source.one_in(8));
        let url = match source.below(8) {
            _ if option => format!("{scheme}://h/m?sentinel_password={password}&{end}"),
            0 => format!("{scheme}://:{password}@{end}"),
            1 => format!("{scheme}:u:{password}@{end}"),
            2 => format!("u:{password}@{end}"),
            _ => format!("{scheme}://u:{password}@{end}"),
        };
        input.show(|| url.clone());
        let read = Location::from_url(&url);
        // A directory is not a secret, whatever its name is.
        let is_directory = matches!(&read, Ok(Location::File { .. }));
        let shown = match &read {
            Ok(_) if is_directory => String::new(),
            Ok(location) => format!("{location:?}"),
            Err(message) => {
                fuzz::assert_is_one_line(&message.chars().take(1000).collect::<String>());
                message.clone()
            }
        };
        assert!(!WORDS.iter().any(|word| shown.contains(word)), "{shown}");
        (&read).into()
    });
}
