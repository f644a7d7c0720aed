//! The frame of an exported function.

/// Exports functions under their C names. A body may follow the pointers that it gets.
macro_rules! exported {
    ($($(#[doc = $doc:literal])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)+) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// Pointers are valid, as the interface demands.
            #[allow(unused_unsafe, reason = "some bodies follow no pointer")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller passes valid pointers, as the interface demands.
                unsafe { $body }
            }
        )+
    };
}

pub(crate) use exported;
