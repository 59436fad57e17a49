//! Tables of text.

use std::io::{self, IsTerminal};

/// The least width to which a column is cut.
const LEAST: usize = 8;

/// What is between two columns.
const GAP: &str = "  ";

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    /// The most characters in a line.
    most: Option<usize>,
}

impl Table {
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new(), most: None }
    }

    /// Adds a row, with a cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<_> = cells.into_iter().map(|cell| cell.replace(char::is_control, " ")).collect();
        debug_assert_eq!(cells.len(), self.head.len());
        self.rows.push(cells);
    }

    /// Cuts cells where the output is a terminal that is too narrow.
    pub(crate) fn fitting_the_terminal(mut self) -> Self {
        if io::stdout().is_terminal() {
            let size = rustix::termios::tcgetwinsize(io::stdout());
            self.most = size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        }
        self
    }

    /// The lines, without a line break at the end. `none`: what it says without rows.
    pub(crate) fn render(&self, none: &str) -> String {
        if self.rows.is_empty() {
            return none.to_owned();
        }
        let widths = self.widths();
        let head: Vec<_> = self.head.iter().map(|name| (*name).to_owned()).collect();
        let lines = std::iter::once(&head).chain(&self.rows).map(|cells| {
            let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{:width$}", cut(cell, *width)));
            cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn widths(&self) -> Vec<usize> {
        let width = |text: &str| text.chars().count();
        let of_rows = |column: usize| self.rows.iter().map(|row| width(&row[column])).max().unwrap_or_default();
        let columns = self.head.iter().enumerate();
        let mut widths: Vec<_> = columns.map(|(column, name)| width(name).max(of_rows(column))).collect();
        let Some(most) = self.most else { return widths };
        let gaps = GAP.len() * (widths.len() - 1);
        let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(most);
        while excess > 0 {
            // The widest column is cut to the next one, or as far as is needed.
            let Some(widest) = widths.iter().copied().max().filter(|widest| *widest > LEAST) else { break };
            let next = widths.iter().copied().filter(|width| *width < widest).max().unwrap_or(LEAST).max(LEAST);
            let at_widest = widths.iter().filter(|width| **width == widest).count();
            let each = (excess.div_ceil(at_widest)).min(widest - next).max(1);
            widths.iter_mut().filter(|width| **width == widest).for_each(|width| *width -= each);
            excess = excess.saturating_sub(each * at_widest);
        }
        widths
    }
}

fn cut(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    cell.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(most: Option<usize>) -> Table {
        let mut table = Table { most, ..Table::new(&["NAME", "TEXT", "N"]) };
        table.row(["a", "a text that is long enough to be cut", "1"].map(str::to_owned));
        table.row(["a-longer-name", "line\nbreak", ""].map(str::to_owned));
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let expected = "\
NAME           TEXT                                  N
a              a text that is long enough to be cut  1
a-longer-name  line break";
        assert_eq!(table(None).render(""), expected);
        assert_eq!(Table::new(&["NAME"]).render("none"), "none");
    }

    #[test]
    fn the_widest_columns_are_cut_first() {
        let text = table(Some(40)).render("");
        let expected = "\
NAME           TEXT                    N
a              a text that is long en…  1
a-longer-name  line break";
        assert_eq!(text.lines().nth(2), expected.lines().nth(2));
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        let narrow = table(Some(1)).render("");
        assert!(narrow.contains("a-longe…") && narrow.contains("a text …"), "{narrow}");
    }
}
