//! What cards can do at best, by the names that their driver gives them.

/// Dense bf16 products with sums of f32, in TFLOP/s: NVIDIA's data sheets, and its whitepapers for GeForce cards. Where a sheet says a number with
/// sparsity, this is half of it.
const CARDS: [(&str, f64); 9] = [
    ("B200", 2250.0),
    ("H200", 989.0),
    ("H100", 989.0),
    ("A100", 312.0),
    ("L40S", 362.0),
    ("L4", 121.0),
    ("A40", 149.7),
    ("4090", 165.2),
    ("3090", 71.0),
];

/// Variants of a card that differ from it.
const VARIANTS: [(&str, &str, f64); 3] = [("H100", "PCIe", 756.0), ("H100", "NVL", 835.0), ("H200", "NVL", 835.0)];

/// What stands in the names of cards that are something else, such as a part of one or a smaller one of the same name.
const OTHERS: [&str; 5] = ["MIG", "Laptop", "D", "Ti", "Mobile"];

/// The most floating-point operations of a card per second, where it is known.
pub fn peak(card: &str) -> Option<f64> {
    let words: Vec<&str> = card.split([' ', '-']).collect();
    if words.iter().any(|word| OTHERS.contains(word)) {
        return None;
    }
    let variant = VARIANTS.iter().find(|(name, variant, _)| words.contains(name) && words.contains(variant));
    let plain = || CARDS.iter().find(|(name, _)| words.contains(name)).map(|card| card.1);
    variant.map(|found| found.2).or_else(plain).map(|tera| tera * 1e12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_known_by_the_names_of_their_driver() {
        for (name, tera) in [
            ("NVIDIA H200", Some(989.0)),
            ("NVIDIA H100 80GB HBM3", Some(989.0)),
            ("NVIDIA H100 PCIe", Some(756.0)),
            ("NVIDIA H100 NVL", Some(835.0)),
            ("NVIDIA A100-SXM4-80GB", Some(312.0)),
            ("NVIDIA GeForce RTX 4090", Some(165.2)),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
            ("NVIDIA GeForce RTX 3090 Ti", None),
            ("NVIDIA A10G", None),
            ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ] {
            assert_eq!(peak(name).map(|flop| flop / 1e12), tera, "{name}");
        }
    }
}
