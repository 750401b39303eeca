"""Pictures made of waves, noise and rectangles, in the modes and formats that files come in."""

import io

import numpy as np
from PIL import Image


def photograph(height, width, seed, noise=6.0):
    """Smooth waves, some noise and sharp edges: what resizing and JPEG find easy and hard."""
    numbers = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    values = np.full((height, width, 3), 128.0)
    for channel in range(3):
        for _ in range(8):
            across, down = numbers.normal(0, 0.12, 2)
            values[..., channel] += numbers.normal(0, 35) * np.sin(across * columns + down * rows + numbers.uniform(0, 6))
    values += numbers.normal(0, noise, values.shape) if noise else 0
    for _ in range(6):
        top, left = numbers.integers(0, height), numbers.integers(0, width)
        values[top : top + height // 4 + 1, left : left + width // 5 + 1] = numbers.integers(0, 256, 3)
    return np.clip(values, 0, 255).astype(np.uint8)


def picture(height, width, seed, mode="RGB", noise=6.0):
    colours = Image.fromarray(photograph(height, width, seed, noise))
    if mode == "P":
        return colours.quantize(23)
    if mode == "I;16":
        wide = np.array(colours.convert("L")).astype(np.uint16) * 2
        return Image.fromarray(wide)
    if mode in ("RGBA", "LA"):
        alpha = Image.fromarray(photograph(height, width, seed + 1000, 0)[..., 0])
        other = colours.convert(mode)
        other.putalpha(alpha)
        return other
    return colours.convert(mode)


def encoded(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def sixteen_bit_rgb_png(height, width, seed):
    """PIL cannot write one, so the chunks are put together here."""
    import struct
    import zlib

    values = photograph(height, width, seed, 0).astype(np.uint16) * 257 - np.uint16(100)
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")


def png_of_rows(height, width, bits, colours, lines, transparent=b""):
    """A PNG of rows that are packed already, for what PIL cannot write."""
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0))
    marks = chunk(b"tRNS", transparent) if transparent else b""
    body = zlib.compress(b"".join(b"\0" + line for line in lines), 9)
    return b"\x89PNG\r\n\x1a\n" + header + marks + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def disc():
    """A black disc with a soft edge on what is transparent and black, too: without its alpha one flat colour."""
    rows, columns = np.mgrid[0:40, 0:52]
    values = np.zeros((40, 52, 4), np.uint8)
    values[..., 3] = np.clip((15 - np.hypot(rows - 20, columns - 26)) * 60, 0, 255)
    return Image.fromarray(values)


def bitmap_with_alpha(image):
    """A BMP of version 4 with a mask for alpha, which PIL reads and does not write."""
    import struct

    body = np.array(image)[::-1][..., [2, 1, 0, 3]].tobytes()
    masks = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    header = struct.pack("<IiiHHIIiiII", 108, image.width, image.height, 1, 32, 3, len(body), 2835, 2835, 0, 0) + masks
    header += b"BGRs" + bytes(48)
    return b"BM" + struct.pack("<IHHI", 14 + len(header) + len(body), 0, 0, 14 + len(header)) + header + body


def transparent_pictures():
    """Transparency in each way that files have it."""
    yield "disc.png", encoded(disc(), "PNG")
    yield "disc.webp", encoded(disc(), "WEBP", lossless=True)
    yield "alpha-lossy.webp", encoded(picture(42, 57, 50, "RGBA"), "WEBP", quality=80)
    frames = [picture(33, 46, 51, "RGBA"), picture(33, 46, 52, "RGBA")]
    yield "alpha-frames.webp", encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    palette = picture(38, 45, 53, "P")
    yield "palette-alphas.png", encoded(palette, "PNG", transparency=bytes(range(0, 230, 10)))
    yield "transparent.gif", encoded(palette, "GIF", transparency=4)
    gray = picture(34, 41, 54, "L", 0).quantize(9).convert("L")
    yield "gray-transparent.png", encoded(gray, "PNG", transparency=int(np.array(gray)[5, 5]))
    colours = picture(34, 43, 55, noise=0).quantize(9).convert("RGB")
    yield "rgb-transparent.png", encoded(colours, "PNG", transparency=colours.getpixel((5, 5)))
    rows = np.array(picture(30, 40, 56, "1")).astype(np.uint8)
    for bit in (0, 1):
        packed = [np.packbits(row).tobytes() for row in rows]
        yield f"bits-transparent-{bit}.png", png_of_rows(30, 40, 1, 0, packed, bytes([0, bit]))
    two = np.array(picture(30, 40, 57, "L")) // 64
    packed = [np.packbits(np.unpackbits(row[:, None], axis=1)[:, 6:].ravel()).tobytes() for row in two]
    yield "gray-2-transparent.png", png_of_rows(30, 40, 2, 0, packed, bytes([0, 1]))
    wide = photograph(24, 31, 58, 0).astype(np.uint16) * 257
    alpha = photograph(24, 31, 59, 0)[..., :1].astype(np.uint16) * 257
    lines = [row.astype(">u2").tobytes() for row in np.concatenate([wide, alpha], axis=2)]
    yield "rgba-16.png", png_of_rows(24, 31, 16, 6, lines)
    lines = [row.astype(">u2").tobytes() for row in np.concatenate([wide[..., :1], alpha], axis=2)]
    yield "gray-alpha-16.png", png_of_rows(24, 31, 16, 4, lines)
    # The upper byte of the transparent colour is another colour's, and PIL looks at the lower one.
    lines = [row.astype(">u2").tobytes() for row in wide]
    yield "rgb-16-transparent.png", png_of_rows(24, 31, 16, 2, lines, (wide[4, 4] & 0xFF | 0x1200).astype(">u2").tobytes())
    lines = [row.astype(">u2").tobytes() for row in wide[..., 0] // 200]
    yield "gray-16-transparent.png", png_of_rows(24, 31, 16, 0, lines, (wide[4, 4, :1] // 200).astype(">u2").tobytes())
    yield "alpha.bmp", bitmap_with_alpha(picture(21, 30, 61, "RGBA"))
    yield "gray-alpha.tiff", encoded(picture(24, 35, 60, "LA"), "TIFF")


def oriented(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def all_pictures():
    """Name with ending, and the file's bytes."""
    yield "rgb.png", encoded(picture(57, 83, 1), "PNG")
    yield "rgb-tall.png", encoded(picture(131, 19, 2), "PNG")
    yield "rgb-one-pixel.png", encoded(picture(1, 1, 3), "PNG")
    yield "rgb-strip.png", encoded(picture(2, 300, 4), "PNG")
    yield "rgb-exact.png", encoded(picture(56, 84, 5), "PNG")
    yield "rgb-one-axis.png", encoded(picture(56, 71, 6), "PNG")
    yield "rgb-large.png", encoded(picture(401, 613, 7, noise=0).quantize(12).convert("RGB"), "PNG", optimize=True)
    yield "gray.png", encoded(picture(45, 62, 9, "L"), "PNG")
    yield "gray-alpha.png", encoded(picture(45, 38, 10, "LA"), "PNG")
    yield "bits.png", encoded(picture(50, 61, 11, "1"), "PNG")
    yield "palette.png", encoded(picture(64, 47, 12, "P"), "PNG")
    yield "palette-transparent.png", encoded(picture(40, 47, 13, "P"), "PNG", transparency=3)
    yield "rgba.png", encoded(picture(39, 77, 14, "RGBA"), "PNG")
    yield "gray-16.png", encoded(picture(30, 41, 15, "I;16"), "PNG")
    yield "rgb-16.png", sixteen_bit_rgb_png(31, 44, 16)
    yield "444.jpg", encoded(picture(60, 81, 20), "JPEG", quality=90, subsampling="4:4:4")
    yield "422.jpg", encoded(picture(61, 79, 21), "JPEG", quality=75, subsampling="4:2:2")
    yield "420.jpg", encoded(picture(77, 53, 22), "JPEG", quality=75, subsampling="4:2:0")
    yield "progressive.jpg", encoded(picture(67, 93, 23), "JPEG", quality=80, progressive=True)
    yield "restarts.jpg", encoded(picture(48, 69, 24), "JPEG", quality=70, restart_marker_blocks=3)
    yield "tiny.jpg", encoded(picture(3, 2, 25), "JPEG", quality=75)
    yield "gray.jpg", encoded(picture(41, 58, 26, "L"), "JPEG")
    yield "cmyk.jpg", encoded(picture(51, 43, 27, "CMYK"), "JPEG", quality=85)
    yield "turned-6.jpg", encoded(picture(40, 65, 28), "JPEG", exif=oriented(6))
    yield "turned-7.jpg", encoded(picture(37, 59, 29), "JPEG", exif=oriented(7), progressive=True)
    yield "turned-3.png", encoded(picture(29, 43, 30), "PNG", exif=oriented(3))
    yield "lossy.webp", encoded(picture(55, 74, 31), "WEBP", quality=80)
    yield "lossless.webp", encoded(picture(33, 51, 32), "WEBP", lossless=True)
    yield "alpha.webp", encoded(picture(36, 45, 33, "RGBA"), "WEBP", lossless=True, exact=True)
    frames = [picture(30, 44, 34, "P"), picture(30, 44, 35, "P")]
    yield "frames.gif", encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    yield "palette.bmp", encoded(picture(27, 37, 36, "P"), "BMP")
    yield "rgb.bmp", encoded(picture(26, 33, 37), "BMP")
    yield "bits.bmp", encoded(picture(26, 37, 38, "1"), "BMP")
    yield "rgba.bmp", encoded(picture(15, 22, 39, "RGBA"), "BMP")
    yield "rgb.tiff", encoded(picture(25, 34, 40), "TIFF", compression="tiff_lzw")
    yield "gray.tiff", encoded(picture(24, 35, 41, "L"), "TIFF", compression="tiff_adobe_deflate")
    yield "rgba.tiff", encoded(picture(24, 31, 42, "RGBA"), "TIFF")
    yield "cmyk.tiff", encoded(picture(23, 29, 44, "CMYK"), "TIFF")
    yield "bits.tiff", encoded(picture(22, 27, 45, "1"), "TIFF")
    yield from transparent_pictures()
