//! The terminal that standard output is.

use std::io::stdout;

/// The columns of the terminal, or of a VT100.
pub fn columns() -> usize {
    match crate::sys::terminal_size(stdout()) {
        Some((rows, columns)) if rows >= 3 && columns > 0 => usize::from(columns),
        _ => 80,
    }
}
