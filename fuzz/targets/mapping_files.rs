//! Mapping files (TOML) for LTTng-UST and for USDT.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::usdt_mapping::UsdtMappingFile;

fuzz_target!(|text: &str| {
    if let Ok(mapping) = Mapping::read(text) {
        mapping.events(true);
    }
    if let Ok(file) = UsdtMappingFile::read(text) {
        file.unused_rules().count();
    }
});
