//! The macro of settings structs: more fields can follow without a new major version.

/// Makes a struct of settings `#[non_exhaustive]`, and gives each field a setter of its name, so that other crates write
/// `SessionParams::new(4096).n_threads(2)`.
#[macro_export]
macro_rules! setters {
    ($(#[$of_struct:meta])* pub struct $name:ident $(<$life:lifetime>)? {
        $($(#[$of_field:meta])* pub $field:ident: $type:ty,)*
    }) => {
        $(#[$of_struct])*
        #[non_exhaustive]
        pub struct $name $(<$life>)? {
            $($(#[$of_field])* pub $field: $type,)*
        }

        impl $(<$life>)? $name $(<$life>)? {
            $(
                #[doc = concat!("Returns the settings with this `", stringify!($field), "`.")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}
