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
        ("file:/dir?x=1", "file: takes no options"),
        ("file:/dir#y", "and no fragment"),
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

#[test]
fn a_directory_does_not_depend_on_where_the_program_runs() {
    let error = Location::from_url("file:a/b").unwrap_err();
    assert!(error.contains("working directory: write file:/") && error.ends_with("/a/b"), "{error}");
    let error = Location::from_url("file:app:secret@db").unwrap_err();
    assert!(error.ends_with("write file:/DIR"), "{error}");
}

#[test]
fn nonsense_is_refused() {
    for bad in ["", ":", "://", "FILE:/x", "file:/a\0b", "file:/a\nb", "dynamodb://a/b/c", "dynamodb://locks?region"] {
        assert!(Location::from_url(bad).is_err(), "{bad}");
    }
}

/// A store that this build has not is refused by its scheme.
const URLS: &[&str] = &[
    "file:/a/b",
    "file:///var/lib/leaderrun",
    "file:a/b",
    "file:/a b/ä",
    "dynamodb://locks",
    "dynamodb://locks?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1%3A8000&profile=p",
    "dynamodb://my_table.1-a?endpoint=https://host.example",
    "s3://locks/a/b?region=eu-west-1&endpoint=https%3A%2F%2Fh%3A1&path_style=false&ca=/a.pem",
    "gs://locks",
    "azblob://account/container/p",
    "redis://h",
    "rediss://me:p%40ss@[::1]:7/3?prefix=a:&wait=2&ca=/ca&cert=/c&key=/k",
    "redis+unix://:pw@/run/redis.sock?db=4",
    "redis+sentinel://:pw@one,two:7/mymaster/5?sentinel_user=s&sentinel_password=t",
    "rediss+sentinel://one/m",
    "redis://h?lock_key=maplefile:leader:lock",
    "postgres://app:p%40ss@one,two:6000/main?schema=s&table=my%20locks&advisory_lock=-7&sslmode=verify-full",
    "postgresql://h/db?sslrootcert=/ca&sslcert=/c&sslkey=/k&application_name=x",
    "postgres:///db?host=/tmp&port=7000",
    "postgres://h/db?sslrootcert=system",
    "mysql://app:p%40ss@one,two:6000/main?table=my%20locks&ssl-mode=VERIFY_IDENTITY",
    "mariadb://h/db?ssl-ca=/ca&ssl-cert=/c&ssl-key=/k",
    "mysql:///db?socket=/run/mysqld/mysqld.sock",
    "nats://u:p%40x@one,two:4333/locks?replicas=3",
    "nats://s3cr3t@h/b",
    "nats+tls://h/b?creds=/x.creds&ca=/ca",
    "nats://h/b?nkey=/x&cert=/c&key=/k",
    "nats://h/b?lock_key=c/d",
    "etcds://u:p%40@one,two:7,[::1]/some/prefix/?ca=/a&cert=/b&key=/c",
    "etcd://h",
    "etcd://h/%2Fservices/locks",
    "etcd://u:p@h:1/x",
    "kubernetes:",
    "kubernetes://web?context=a%20b&kubeconfig=/k&lease=a.b",
    "kubernetes:?lease=other",
];

#[test]
fn a_million_urls_are_read_or_refused() {
    fuzz::bent_text("store URL", URLS, |url, _| read_or_refused(url));
}

fn read_or_refused(url: &str) -> fuzz::Fate {
    let read = Location::from_url(url);
    if let Err(message) = &read {
        // The scheme may be as long as the text that a user pasted.
        fuzz::assert_is_one_line(&message.chars().take(1000).collect::<String>());
    }
    (&read).into()
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
