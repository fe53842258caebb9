//! A frame under construction, and the limits that it must stay within while it grows (F-6), so
//! that a value too large is refused before memory is spent on it. It knows no table.

use flatbuffers::{FlatBufferBuilder, ForwardsUOffset, Push, Vector, WIPOffset};

use crate::generated as fb;
use crate::rows::RowsFrame;
use crate::violation::EncodeError;
use crate::{DEPTH_LIMIT, ENTRIES_LIMIT, STRING_LIMIT};

pub(crate) struct Encoder<'b> {
    builder: FlatBufferBuilder<'b>,
    depth: usize,
    limit: usize,
    other_domain_info: bool,
}

impl<'b> Encoder<'b> {
    /// An encoder of one frame of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            builder: FlatBufferBuilder::with_capacity(1024),
            depth: 0,
            limit,
            other_domain_info: false,
        }
    }

    /// Makes every DomainInfo take the layout of `domain_info`.
    pub(crate) fn with_other_domain_info(mut self) -> Self {
        self.other_domain_info = true;
        self
    }

    pub(crate) fn other_domain_info(&self) -> bool {
        self.other_domain_info
    }

    /// Begins a table; everything until `leave` nests in it.
    pub(crate) fn enter(&mut self) -> Result<(), EncodeError> {
        if self.depth >= DEPTH_LIMIT {
            return Err(EncodeError::TooDeep);
        }
        self.depth += 1;
        Ok(())
    }

    /// The builder to write the table with, after what nests in it.
    pub(crate) fn leave(&mut self) -> Result<&mut FlatBufferBuilder<'b>, EncodeError> {
        self.depth = self.depth.saturating_sub(1);
        self.room(0)?;
        Ok(&mut self.builder)
    }

    /// The builder to write a table in which nothing nests.
    pub(crate) fn leaf(&mut self) -> Result<&mut FlatBufferBuilder<'b>, EncodeError> {
        self.enter()?;
        self.leave()
    }

    pub(crate) fn string(&mut self, text: &str) -> Result<WIPOffset<&'b str>, EncodeError> {
        if text.len() > STRING_LIMIT {
            return Err(EncodeError::TooLarge {
                limit: STRING_LIMIT,
            });
        }
        self.room(text.len())?;
        Ok(self.builder.create_string(text))
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<WIPOffset<Vector<'b, u8>>, EncodeError> {
        self.room(bytes.len())?;
        Ok(self.builder.create_vector(bytes))
    }

    pub(crate) fn scalars<T: Push + Copy>(
        &mut self,
        values: &[T],
    ) -> Result<WIPOffset<Vector<'b, T::Output>>, EncodeError> {
        self.entries(values.len())?;
        Ok(self.builder.create_vector(values))
    }

    /// A vector of the tables that `one` writes.
    pub(crate) fn each<T, R>(
        &mut self,
        values: &[T],
        one: impl Fn(&mut Self, &T) -> Result<WIPOffset<R>, EncodeError>,
    ) -> Result<WIPOffset<Vector<'b, ForwardsUOffset<R>>>, EncodeError> {
        self.entries(values.len())?;
        let mut tables = Vec::with_capacity(values.len());
        for value in values {
            tables.push(one(self, value)?);
        }
        Ok(self.builder.create_vector(&tables))
    }

    /// Rows that were received, written anew.
    pub(crate) fn rows(
        &mut self,
        rows: &RowsFrame,
    ) -> Result<WIPOffset<fb::SubscriptionRows<'b>>, EncodeError> {
        let values = rows.to_values().map_err(EncodeError::InvalidRows)?;
        crate::encode::subscription_rows(self, &values)
    }

    /// Ends the frame with its root and identifier.
    pub(crate) fn finish<T>(
        mut self,
        root: WIPOffset<T>,
        identifier: &str,
    ) -> Result<Vec<u8>, EncodeError> {
        self.builder.finish(root, Some(identifier));
        let (mut bytes, start) = self.builder.collapse();
        bytes.drain(..start);
        if bytes.len() > self.limit {
            return Err(EncodeError::TooLarge { limit: self.limit });
        }
        Ok(bytes)
    }

    fn entries(&mut self, entries: usize) -> Result<(), EncodeError> {
        if entries > ENTRIES_LIMIT {
            return Err(EncodeError::TooManyEntries { entries });
        }
        // No entry of a vector is smaller than the 4 bytes of an offset.
        self.room(entries * 4)
    }

    fn room(&self, wanted: usize) -> Result<(), EncodeError> {
        let used = self.builder.unfinished_data().len();
        if used.saturating_add(wanted) > self.limit {
            return Err(EncodeError::TooLarge { limit: self.limit });
        }
        Ok(())
    }
}
