"""The texts that the small tokenizer is trained on and tested with: many scripts, white space, numbers, odd characters."""

import random

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and then it doesn't do anything else for the rest of the day.",
    "What is written on the sign in the picture? Describe the image in one sentence, and count the boats.",
    "I'll say it again: we've seen that they're late, he'd been there, and it's not what you'd want; I'm sure.",
    "You are a helpful assistant. Answer with the total amount of the invoice as a JSON object.",
    '{"vendor": "Meyer & Sons", "date": "2024-03-17", "total": 1234.56, "items": [{"name": "bolt M8", "count": 100}]}',
    "def resize(image, height, width):\n    if height == 0:\n        return None\n    return image[:height, :width]\n",
    "fn main() -> Result<(), Error> {\n\tlet tokens = tokenizer.encode(&text)?;\n\tprintln!(\"{}\", tokens.len());\n}\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Die Straße ist naß, Füße und Größe.",
    "Portez ce vieux whisky au juge blond qui fume. Où est la bibliothèque, s'il vous plaît ? Ça va, garçon ?",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío; añoraba a su querido cachorro. ¿Qué tal?",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Что написано на картинке?",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Τι βλέπεις στην εικόνα;",
    "请描述这张图片。图片里有几只船？它们是什么颜色的？今天是二〇二四年三月十七日，天气很好。",
    "この画像には何が写っていますか。いろはにほへと ちりぬるを。カタカナとひらがなと漢字。",
    "이 그림에는 무엇이 있습니까? 다람쥐 헌 쳇바퀴에 타고파. 키스의 고유조건은 입술끼리 만나야 하고.",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت. ماذا ترى في الصورة؟",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה. מה רואים בתמונה?",
    "यह चित्र क्या दिखाता है? ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले।",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig. Příliš žluťoučký kůň úpěl ďábelské ódy. Árvíztűrő tükörfúrógép.",
    "Tiếng Việt: Trên bức ảnh này có những gì? Đường phố, xe máy và mấy cái cây.",
    "Emoji: 😀😃😄 👍🏽 👨‍👩‍👧‍👦 🇩🇪🇯🇵 ❤️ ☀️ ⛵ and math: ∑ᵢ xᵢ² ≤ √2 · π ≈ 4.44; ½ + ⅓ = ⅚; 10³ m².",
    "Prices: $1,299.00, €45.50, £7; 3.14159, 1e-6, 0xFF, 2024/03/17 12:34:56, +49 (0)30 123456, 50% off!!!",
]

FRAGMENTS = [
    # Letters of many scripts, some of them composed in two ways.
    "a", "Z", "the", "ß", "é", "e\u0301", "ñ", "n\u0303", "Å", "A\u030a", "\u212b", "ﬁ", "ﬆ", "ſ", "ı", "İ", "ǅ", "ʰ", "ª",
    "Ж", "ё", "е\u0308", "Ω", "\u2126", "中", "文字", "か\u3099", "が", "ｶﾞ", "한", "\u1112\u1161\u11ab", "\u1112\u1161", "ع", "ـ", "ש\u05b8",
    "\ufb2e", "क\u093c", "\u0958", "ก็", "ས", "ქ", "Ꭰ", "𝒜", "𠀀", "𐍈", "\U000e0101", "\u0300", "\u0345", "q\u0307\u0323", "q\u0323\u0307", "\u1e9b\u0323", "\u0f73", "\ufa10", "\U0002f800",
    # Numbers of every kind.
    "0", "7", "42", "1234567", "٣", "५", "²", "½", "Ⅷ", "〇", "①", "𝟘", "৴", "ↂ",
    # White space, alone and in runs.
    " ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u000b", "\u200b", "\u180e", "\u202f", "\x1c", "\ufeff",
    # Punctuation and symbols.
    ".", ",", "...", "!?", "-", "--", "_", "'", "''", "\"", "’", "“", "”", "(", ")", "[]", "{", "}", "</", ">", "@", "#", "€", "→", "∑", "、", "。", "¿", "|", "<|", "|>", "\\", "/", "&amp;",
    # Contractions, in both cases.
    "'s", "'S", "'t", "'re", "'RE", "'ve", "'Ve", "'m", "'ll", "'LL", "'d", "'D", "'ſ", "'l", "'x", "’s",
    # Emoji, joiners, private and unassigned places, control characters.
    "😀", "👍🏽", "👨‍👩‍👧", "🇩🇪", "❤️", "\u200d", "\ufe0f", "\ue000", "\U0010fffd", "\u0378", "\ufffd", "\uffff", "\x00", "\x07", "\x1b[0m", "\x7f", "\u00ad",
    # Words.
    " hello", " world", "image", " Straße", " été", "don't", "I'M", "we'll", "x²", "3D", " 12", "v1.2.3", "foo_bar", "CamelCase",
    # Special tokens, whole and broken.
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>", "<tool_call>", "</tool_call>",
    "<|im_start|", "|im_end|>", "<|IM_END|>", "< |im_end|>", "<|im_<|im_end|>", "<<|im_end|>>",
]


def corpus():
    """What the merges are learnt from: the sentences, and numbers and names so that pairs differ in frequency."""
    random_numbers = random.Random(1)
    lines = list(SENTENCES) * 3
    for _ in range(300):
        words = " ".join(random_numbers.choice(SENTENCES)).replace("   ", "\0").replace(" ", "").replace("\0", " ").split()
        lines.append(" ".join(random_numbers.choice(words) for _ in range(8)))
    return lines


def test_texts(count, seed):
    """The sentences, each fragment alone and between letters, and `count` strings of random fragments and characters."""
    texts = ["", *SENTENCES]
    texts += FRAGMENTS
    texts += [f"x{one}y {one} z" for one in FRAGMENTS[::5]]
    numbers = random.Random(seed)
    for _ in range(count):
        pieces = [numbers.choice(FRAGMENTS) for _ in range(numbers.randint(1, 12))]
        if numbers.random() < 0.3:
            pieces.insert(numbers.randrange(len(pieces) + 1), any_characters(numbers))
        texts.append("".join(pieces))
    return list(dict.fromkeys(texts))


def any_characters(numbers):
    def one():
        while True:
            number = numbers.choice([numbers.randrange(0x250), numbers.randrange(0x3000), numbers.randrange(0x10000), numbers.randrange(0x110000)])
            if not 0xD800 <= number < 0xE000:
                return chr(number)

    return "".join(one() for _ in range(numbers.randint(1, 6)))
