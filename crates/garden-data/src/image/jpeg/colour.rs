//! Samples to RGB: which colours a file has is guessed as libjpeg does, and four of them are taken as PIL does.

use super::header::{Frame, Header};
use super::{Component, upsample};
use crate::image::rgb::{Picture, from_cmyk};

enum Colours {
    Gray,
    Rgb,
    YCbCr,
    /// Four colours as they are.
    Cmyk,
    /// Three of the four turned into luma and chroma.
    Ycck,
}

pub(super) fn convert(
    header: &Header,
    frame: &Frame,
    components: &[Component],
    picture: &mut Picture,
) -> Result<(), String> {
    let colours = colours(header, components);
    let width = frame.width;
    let pixels = picture.reset(width, frame.height);
    let mut planes = vec![vec![0; width]; components.len()];
    let mut sums = Vec::new();
    for (row, out) in pixels.chunks_exact_mut(3 * width).enumerate() {
        for (component, plane) in components.iter().zip(&mut planes) {
            let (across, down) = (frame.across / component.across, frame.down / component.down);
            upsample::row(component, across, down, row, &mut sums, plane);
        }
        match (&colours, &planes[..]) {
            (Colours::YCbCr, [y, cb, cr]) => from_luma(y, cb, cr, out),
            (Colours::Rgb, [red, green, blue]) => {
                for (place, pixel) in out.chunks_exact_mut(3).enumerate() {
                    pixel.copy_from_slice(&[red[place], green[place], blue[place]]);
                }
            }
            (Colours::Cmyk, [c, m, y, k]) => {
                // Adobe writes them inverted, and PIL takes it that everybody does.
                for (place, pixel) in out.chunks_exact_mut(3).enumerate() {
                    let inks = [c[place], m[place], y[place], k[place]].map(|ink| 255 - ink);
                    pixel.copy_from_slice(&from_cmyk(inks));
                }
            }
            (Colours::Ycck, [y, cb, cr, k]) => {
                from_luma(y, cb, cr, out);
                for (pixel, k) in out.chunks_exact_mut(3).zip(k) {
                    // Inverted once by libjpeg and once more by PIL.
                    let rgb = from_cmyk([pixel[0], pixel[1], pixel[2], 255 - k]);
                    pixel.copy_from_slice(&rgb);
                }
            }
            (_, [gray, ..]) => {
                for (pixel, gray) in out.chunks_exact_mut(3).zip(gray) {
                    pixel.fill(*gray);
                }
            }
            (_, []) => return Err("there are no components".to_string()),
        }
    }
    Ok(())
}

fn colours(header: &Header, components: &[Component]) -> Colours {
    let ids: Vec<u8> = components.iter().map(|component| component.id).collect();
    match (components.len(), header.adobe) {
        (1, _) => Colours::Gray,
        (4, Some(2)) => Colours::Ycck,
        (4, _) => Colours::Cmyk,
        _ if header.is_jfif => Colours::YCbCr,
        (_, Some(0)) => Colours::Rgb,
        (_, Some(_)) => Colours::YCbCr,
        _ if ids == *b"RGB" => Colours::Rgb,
        _ => Colours::YCbCr,
    }
}

/// Luma and chroma to RGB, in 16 bits behind the point.
fn from_luma(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    const HALF: i32 = 1 << 15;
    for (((pixel, y), cb), cr) in out.as_chunks_mut::<3>().0.iter_mut().zip(y).zip(cb).zip(cr) {
        let (y, cb, cr) = (i32::from(*y), i32::from(*cb) - 128, i32::from(*cr) - 128);
        let red = y + ((91_881 * cr + HALF) >> 16);
        let green = y + ((-22_554 * cb - 46_802 * cr + HALF) >> 16);
        let blue = y + ((116_130 * cb + HALF) >> 16);
        *pixel = [red, green, blue].map(|value| value.clamp(0, 255) as u8);
    }
}
