//! Text without what is another one each time: times, random names, this host.

/// Words that stand for what is known to change.
pub struct Plain {
    words: Vec<(String, String)>,
    /// What digits stand behind.
    before: Vec<(String, String)>,
    host: String,
}

impl Plain {
    pub fn new() -> Self {
        let host = nix::unistd::gethostname().expect("it has a name").into_string().expect("it is text");
        Self { words: Vec::new(), before: Vec::new(), host }
            .with(&leaderrun::internals::notes::orders::operator(), "OPERATOR")
    }

    /// `word` stands in the place of `text`, wherever that is.
    pub fn with(mut self, text: &str, word: &str) -> Self {
        self.words.push((text.to_owned(), word.to_owned()));
        self
    }

    /// `word` stands in the place of the digits that follow `text`, wherever that is. For what has as many digits as it
    /// happens to: process numbers, and clocks that count from the start of the machine.
    pub fn after(mut self, text: &str, word: &str) -> Self {
        self.before.push((text.to_owned(), word.to_owned()));
        self
    }

    pub fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (known, word) in &self.words {
            text = text.replace(known, word);
        }
        for (before, word) in &self.before {
            let parts: Vec<&str> = text.split(before).collect();
            let rest = parts[1..].iter().map(|part| {
                let without = part.trim_start_matches(|c: char| c.is_ascii_digit());
                let word = if without.len() < part.len() { word } else { "" };
                format!("{before}{word}{without}")
            });
            text = parts[0].to_owned() + &rest.collect::<String>();
        }
        let mut plain = String::new();
        let mut rest = text.as_str();
        while let Some(first) = rest.chars().next() {
            let (length, word) = if let Some(length) = length_of_date(rest) {
                (length, "TIME".to_owned())
            } else if first.is_ascii_alphanumeric() {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-._".contains(c)).unwrap_or(rest.len());
                (end, self.word(&rest[..end]))
            } else {
                (first.len_utf8(), first.to_string())
            };
            plain += &word;
            rest = &rest[length..];
        }
        plain
    }

    fn word(&self, word: &str) -> String {
        if word == self.host {
            return "HOST".to_owned();
        }
        if is_uuid(word) {
            return "UUID".to_owned();
        }
        let is_hex = word.chars().all(|c| c.is_ascii_hexdigit());
        if is_hex && word.len() >= 16 && word.contains(|c: char| c.is_ascii_alphabetic()) {
            return format!("HEX{}", word.len());
        }
        let (mut plain, mut rest) = (String::new(), word);
        while let Some(from) = rest.find(|c: char| c.is_ascii_digit()) {
            let digits = &rest[from..];
            let length = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            plain += &rest[..from];
            plain += match length {
                10 => "SECONDS",
                13 => "MILLIS",
                16 => "MICROS",
                19 => "NANOS",
                _ => &digits[..length],
            };
            rest = &digits[length..];
        }
        plain + rest
    }
}

fn is_uuid(word: &str) -> bool {
    let parts: Vec<usize> = word.split('-').map(str::len).collect();
    parts == [8, 4, 4, 4, 12] && word.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}

/// Of `2026-11-22T03:36:26.737Z`, and of a space in the place of T and an offset in that of Z.
fn length_of_date(text: &str) -> Option<usize> {
    let shape = "dddd-dd-ddTdd:dd:dd";
    let fits = |(shape, c): (char, char)| match shape {
        'd' => c.is_ascii_digit(),
        'T' => c == 'T' || c == ' ',
        other => c == other,
    };
    if text.chars().count() < shape.len() || !shape.chars().zip(text.chars()).all(fits) {
        return None;
    }
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let mut length = shape.len();
    if text[length..].starts_with('.') {
        length += 1 + digits(&text[length + 1..]);
    }
    let zone = &text[length..];
    if zone.starts_with('Z') {
        length += 1;
    } else if zone.starts_with(['+', '-']) {
        length += 1 + digits(&zone[1..]);
        if text[length..].starts_with(':') {
            length += 1 + digits(&text[length + 1..]);
        }
    }
    Some(length)
}
