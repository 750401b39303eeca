//! Thrift's compact protocol, which Parquet uses for metadata, read as a tree of numbered fields.

/// A value.
#[derive(Debug)]
pub(crate) enum Item {
    Bool(bool),
    Int(i64),
    Bytes(Vec<u8>),
    List(Vec<Item>),
    Struct(Vec<(i16, Item)>),
    /// Maps and floating-point numbers, which are not needed here.
    Other,
}

/// Why parsing failed.
#[derive(Debug, PartialEq)]
pub(crate) enum Failure {
    /// The bytes end too early; more of them may help.
    TooShort,
    /// The bytes are invalid.
    Broken,
}

/// Maximum nesting of structs; Parquet uses about six levels.
const DEEPEST: usize = 32;

impl Item {
    /// A field of a struct.
    pub(crate) fn field(&self, id: i16) -> Option<&Item> {
        match self {
            Item::Struct(fields) => fields.iter().find(|(field, _)| *field == id).map(|(_, item)| item),
            _ => None,
        }
    }

    pub(crate) fn int(&self, id: i16) -> Option<i64> {
        match self.field(id)? {
            Item::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn bool(&self, id: i16) -> Option<bool> {
        match self.field(id)? {
            Item::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn text(&self, id: i16) -> Option<String> {
        match self.field(id)? {
            Item::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    pub(crate) fn list(&self, id: i16) -> &[Item] {
        match self.field(id) {
            Some(Item::List(items)) => items,
            _ => &[],
        }
    }
}

/// Reads a struct; also returns its length in bytes.
pub(crate) fn read(bytes: &[u8]) -> Result<(Item, usize), Failure> {
    let mut reader = Reader { bytes, place: 0 };
    let item = reader.structure(0)?;
    Ok((item, reader.place))
}

struct Reader<'a> {
    bytes: &'a [u8],
    place: usize,
}

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8, Failure> {
        let byte = *self.bytes.get(self.place).ok_or(Failure::TooShort)?;
        self.place += 1;
        Ok(byte)
    }

    fn unsigned(&mut self) -> Result<u64, Failure> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Failure::Broken)
    }

    fn signed(&mut self) -> Result<i64, Failure> {
        let value = self.unsigned()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn structure(&mut self, depth: usize) -> Result<Item, Failure> {
        if depth > DEEPEST {
            return Err(Failure::Broken);
        }
        let mut fields = Vec::new();
        let mut id = 0i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(Item::Struct(fields));
            }
            id = match head >> 4 {
                0 => i16::try_from(self.signed()?).map_err(|_| Failure::Broken)?,
                step => id.checked_add(i16::from(step)).ok_or(Failure::Broken)?,
            };
            let item = match head & 15 {
                1 => Item::Bool(true),
                2 => Item::Bool(false),
                kind => self.item(kind, depth)?,
            };
            fields.push((id, item));
        }
    }

    fn item(&mut self, kind: u8, depth: usize) -> Result<Item, Failure> {
        Ok(match kind {
            // In a list, booleans are bytes.
            1 | 2 => Item::Bool(self.byte()? == 1),
            3 => Item::Int(i64::from(self.byte()? as i8)),
            4..=6 => Item::Int(self.signed()?),
            7 => {
                self.skip(8)?;
                Item::Other
            }
            8 => {
                let length = self.unsigned()?;
                let start = self.place;
                self.skip(length)?;
                Item::Bytes(self.bytes[start..self.place].to_vec())
            }
            9 | 10 => self.list(depth)?,
            11 => self.map(depth)?,
            12 => self.structure(depth + 1)?,
            _ => return Err(Failure::Broken),
        })
    }

    fn skip(&mut self, count: u64) -> Result<(), Failure> {
        if count > (self.bytes.len() - self.place) as u64 {
            return Err(Failure::TooShort);
        }
        self.place += count as usize;
        Ok(())
    }

    fn list(&mut self, depth: usize) -> Result<Item, Failure> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.unsigned()? } else { u64::from(head >> 4) };
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(self.item(head & 15, depth + 1)?);
        }
        Ok(Item::List(items))
    }

    fn map(&mut self, depth: usize) -> Result<Item, Failure> {
        let count = self.unsigned()?;
        if count > 0 {
            let kinds = self.byte()?;
            for _ in 0..count {
                self.item(kinds >> 4, depth + 1)?;
                self.item(kinds & 15, depth + 1)?;
            }
        }
        Ok(Item::Other)
    }
}
