//! Readers of all columns of a message.

/// Defines a struct of [`Column`](super::column::Column)s over the fields of a message, with the
/// same names.
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

            /// Returns an error if values are left.
            pub(super) fn end(&self) -> Result<(), $crate::v1::Malformed> {
                $(self.$field.end()?;)+
                $(self.$ids.end()?;)*
                Ok(())
            }
        }
    };
}
pub(super) use columns;
