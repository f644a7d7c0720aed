//! Paragraphs for a terminal of 80 columns.

/// Longest line of a paragraph.
pub const WIDTH: usize = 78;

/// Breaks lines that are too long. Lines that begin with a space or have two spaces together are drawn or tables, and stay.
pub fn wrapped(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.starts_with(' ') || line.contains("  ") || line.starts_with('$') || line.len() <= WIDTH {
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let mut width = 0;
        for word in line.split(' ') {
            let length = word.chars().count();
            if width > 0 && width + 1 + length > WIDTH {
                out.push('\n');
                width = 0;
            }
            if width > 0 {
                out.push(' ');
                width += 1;
            }
            out.push_str(word);
            width += length;
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_broken_and_tables_are_not() {
        let long = "word ".repeat(40);
        let text = wrapped(&format!("{long}\n  {long}\nshort\n"));
        assert!(text.lines().take(3).all(|line| line.len() <= WIDTH));
        assert!(text.lines().any(|line| line.starts_with("  word") && line.len() > WIDTH) && text.ends_with("short\n"));
    }
}
