//! Parquet tables that the `parquet` crate writes and reads: random rows, page sizes, codecs and versions of the format; ours must read the same.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use garden_data::{Content, Dataset, Part, Record};
use garden_random::SplitMix64;
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::{Field, Row as OracleRow};
use parquet::schema::parser::parse_message_type;

/// As Hugging Face writes a vision dataset: a picture, a conversation, and columns that nobody trains on.
const SCHEMA: &str = "message rows {
    required int64 id;
    optional group image { optional binary bytes; optional binary path (UTF8); }
    optional double score;
    optional group messages (LIST) {
        repeated group list { optional group element { optional binary role (UTF8); optional binary content (UTF8); } }
    }
}";

/// A row: the picture with its path, and texts that user and assistant say in turns.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    image: Option<(Vec<u8>, Option<String>)>,
    texts: Vec<String>,
}

struct Draw(SplitMix64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.draw() % bound
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn text(&mut self) -> String {
        const LETTERS: [char; 8] = ['a', 'Z', '7', ' ', 'é', '漢', '\n', '"'];
        let length = 1 + self.below(60);
        // Texts that come again are what dictionaries are for; a letter first, as blank texts are refused.
        if self.below(3) == 0 {
            return self.of(&["What is this?", "A cat.", "x"]).to_string();
        }
        std::iter::once('a').chain((0..length).map(|_| self.of(&LETTERS))).collect()
    }

    fn row(&mut self) -> Row {
        let longest = self.of(&[1, 40, 3000, 200_000]);
        let image = (self.below(4) > 0).then(|| {
            let length = 1 + self.below(longest);
            let bytes = (0..length).map(|_| self.0.draw() as u8).collect();
            (bytes, (self.below(2) == 0).then(|| format!("{}.png", self.below(1000))))
        });
        let texts = (0..2 * (1 + self.below(3))).map(|_| self.text()).collect();
        Row { image, texts }
    }

    fn properties(&mut self) -> WriterProperties {
        WriterProperties::builder()
            .set_writer_version(self.of(&[WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0]))
            .set_compression(self.of(&[Compression::UNCOMPRESSED, Compression::SNAPPY]))
            .set_dictionary_enabled(self.below(3) > 0)
            .set_dictionary_page_size_limit(self.of(&[64, 1 << 20]))
            .set_data_page_size_limit(self.of(&[16, 1000, 1 << 20]))
            .set_data_page_row_count_limit(self.of(&[1, 7, 20_000]))
            .set_write_batch_size(self.of(&[1, 5, 1024]))
            .build()
    }
}

/// Writes rows in row groups of this many.
fn write(path: &Path, rows: &[Row], group: usize, properties: WriterProperties) {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    for (number, rows) in rows.chunks(group).enumerate() {
        let mut columns = writer.next_row_group().unwrap();
        let mut place = 0;
        while let Some(mut column) = columns.next_column().unwrap() {
            let bytes = |values: Vec<Option<Vec<u8>>>, nulls: &[i16], most: i16, repeats: Option<&[i16]>| {
                // A value that is missing has the level of what is missing; every other one the highest.
                let levels: Vec<i16> =
                    values.iter().zip(nulls).map(|(value, null)| if value.is_some() { most } else { *null }).collect();
                let values: Vec<ByteArray> = values.into_iter().flatten().map(ByteArray::from).collect();
                (values, levels, repeats.map(<[i16]>::to_vec))
            };
            match place {
                0 => {
                    let ids: Vec<i64> = (0..rows.len()).map(|row| (number * group + row) as i64).collect();
                    column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
                }
                3 => {
                    let levels: Vec<i16> = (0..rows.len()).map(|row| i16::from(row % 3 == 0)).collect();
                    let scores = vec![0.5; levels.iter().filter(|level| **level == 1).count()];
                    column.typed::<DoubleType>().write_batch(&scores, Some(&levels), None).unwrap();
                }
                1 | 2 => {
                    let values = rows.iter().map(|row| {
                        let (data, path) = row.image.as_ref()?;
                        if place == 1 { Some(data.clone()) } else { path.clone().map(String::into_bytes) }
                    });
                    let nulls: Vec<i16> = rows.iter().map(|row| i16::from(row.image.is_some())).collect();
                    let (values, levels, _) = bytes(values.collect(), &nulls, 2, None);
                    column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
                }
                _ => {
                    let said = rows.iter().flat_map(|row| row.texts.iter().enumerate());
                    let values = said.clone().map(|(turn, text)| {
                        let role = if turn % 2 == 0 { "user" } else { "assistant" };
                        Some(if place == 4 { role } else { text.as_str() }.as_bytes().to_vec())
                    });
                    let repeats: Vec<i16> = said.map(|(turn, _)| i16::from(turn > 0)).collect();
                    let nulls = vec![0; repeats.len()];
                    let (values, levels, repeats) = bytes(values.collect(), &nulls, 4, Some(&repeats));
                    column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), repeats.as_deref()).unwrap();
                }
            }
            column.close().unwrap();
            place += 1;
        }
        columns.close().unwrap();
    }
    writer.close().unwrap();
}

/// A row as the oracle reads it.
fn of_oracle(row: &OracleRow) -> Row {
    let mut read = Row { image: None, texts: Vec::new() };
    for (name, field) in row.get_column_iter() {
        match (name.as_str(), field) {
            ("image", Field::Group(image)) => {
                let mut parts = (Vec::new(), None);
                for (name, field) in image.get_column_iter() {
                    match (name.as_str(), field) {
                        ("bytes", Field::Bytes(bytes)) => parts.0 = bytes.data().to_vec(),
                        ("path", Field::Str(path)) => parts.1 = Some(path.clone()),
                        _ => {}
                    }
                }
                read.image = Some(parts);
            }
            ("messages", Field::ListInternal(list)) => {
                for message in list.elements() {
                    let Field::Group(message) = message else { panic!("{message:?}") };
                    let content = message.get_column_iter().find(|(name, _)| *name == "content").unwrap().1;
                    let Field::Str(text) = content else { panic!("{content:?}") };
                    read.texts.push(text.clone());
                }
            }
            _ => {}
        }
    }
    read
}

/// A row as a dataset of ours reads it. The path of a picture is only what errors call it.
fn of_ours(record: Record) -> Row {
    let text = |content: Content| match content {
        Content::Text(text) => text,
        Content::Parts(parts) => parts
            .into_iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text),
                Part::Image => None,
            })
            .collect(),
        Content::Absent => String::new(),
    };
    let image = record.pictures.into_iter().next().map(|picture| (picture.data, None));
    Row { image, texts: record.messages.into_iter().map(|message| text(message.content)).collect() }
}

#[test]
fn tables_are_read_as_the_parquet_crate_reads_them() {
    let seed = garden_testing::seed();
    let folder = std::env::temp_dir().join(format!("garden-oracle-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut draw = Draw(SplitMix64(seed));
    let (mut read_all, mut refused) = (0, 0);
    for table in 0..60 {
        let rows: Vec<Row> = (0..1 + draw.below(40)).map(|_| draw.row()).collect();
        let (group, properties) = (1 + draw.below(50) as usize, draw.properties());
        let has_deltas = properties.writer_version() == WriterVersion::PARQUET_2_0;
        let about = format!("GARDEN_SEED={seed}, table {table}: {properties:?}");
        let path = folder.join(format!("{table}.parquet"));
        write(&path, &rows, group, properties);
        let oracle = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let oracle: Vec<Row> = oracle.get_row_iter(None).unwrap().map(|row| of_oracle(&row.unwrap())).collect();
        assert_eq!(oracle, rows, "{about}");
        let dataset = Dataset::open(&path).unwrap();
        assert_eq!(dataset.len(), rows.len(), "{about}");
        // Not in order: readers skip to the row that is asked for.
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|row| garden_random::mix(seed ^ *row as u64));
        for index in order {
            let expected =
                Row { image: oracle[index].image.clone().map(|image| (image.0, None)), ..oracle[index].clone() };
            match dataset.read(index) {
                Ok(record) => {
                    assert_eq!(of_ours(record), expected, "{about}, row {index}");
                    read_all += 1;
                }
                // The second version has delta encodings, which pyarrow does not write by default: refused by name, never read wrongly.
                Err(error) => {
                    assert!(
                        has_deltas && error.to_string().contains("`PLAIN` and dictionaries are supported"),
                        "{about}, row {index}: {error}"
                    );
                    refused += 1;
                }
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::remove_dir(&folder).unwrap();
    assert!(read_all > 0 && refused > 0, "{read_all} rows read, {refused} refused");
}
