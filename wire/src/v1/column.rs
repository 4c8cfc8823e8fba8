//! A column while it is read, and what lies between a value and its place in one.

use super::Malformed;

/// What is left of a column.
pub(super) struct Column<'a, T> {
    values: std::slice::Iter<'a, T>,
    name: &'static str,
}

impl<'a, T> Column<'a, T> {
    pub(super) fn new(values: &'a [T], name: &'static str) -> Self {
        Column { values: values.iter(), name }
    }

    /// The next value.
    pub(super) fn next(&mut self) -> Result<&'a T, Malformed> {
        self.values.next().ok_or(Malformed::Short(self.name))
    }

    /// The next value, if it is said that there is one.
    pub(super) fn next_if(&mut self, there: bool) -> Result<Option<&'a T>, Malformed> {
        there.then(|| self.next()).transpose()
    }

    /// Nothing may be left.
    pub(super) fn end(&self) -> Result<(), Malformed> {
        if self.values.as_slice().is_empty() { Ok(()) } else { Err(Malformed::Long(self.name)) }
    }

    /// A value that this column may not hold.
    pub(super) fn refuse(&self, value: u64) -> Malformed {
        Malformed::Value { column: self.name, value }
    }
}

/// The last value of a column of differences.
#[derive(Debug, Default)]
pub(super) struct Delta(u64);

impl Delta {
    /// What is written for a value.
    pub(super) fn of(&mut self, value: u64) -> i64 {
        let difference = value.wrapping_sub(self.0) as i64;
        self.0 = value;
        difference
    }

    /// The value that was written so.
    pub(super) fn undo(&mut self, difference: i64) -> u64 {
        self.0 = self.0.wrapping_add(difference as u64);
        self.0
    }
}

impl From<u64> for Delta {
    /// Whose first value differs from this.
    fn from(first: u64) -> Self {
        Delta(first)
    }
}

/// A struct of [`Column`]s over a message's fields, by the same names.
macro_rules! columns {
    ($(#[$doc:meta])* $reader:ident of $message:ident { $($field:ident: $type:ty),+ $(,)? } ids { $($ids:ident),* }) => {
        $(#[$doc])*
        pub(super) struct $reader<'a> {
            $($field: $crate::v1::column::Column<'a, $type>,)+
            $($ids: $crate::v1::ids::IdReader<'a>,)*
        }

        impl<'a> $reader<'a> {
            pub(super) fn new(message: &'a $message) -> Self {
                $reader {
                    $($field: $crate::v1::column::Column::new(
                        &message.$field,
                        concat!(stringify!($message), ".", stringify!($field)),
                    ),)+
                    $($ids: $crate::v1::ids::IdReader::new(
                        &message.$ids,
                        concat!(stringify!($message), ".", stringify!($ids)),
                    ),)*
                }
            }

            /// Nothing may be left.
            pub(super) fn end(&self) -> Result<(), $crate::v1::Malformed> {
                $(self.$field.end()?;)+
                $(self.$ids.end()?;)*
                Ok(())
            }
        }
    };
}
pub(super) use columns;
