"""Finds links between pages that lead nowhere: files and headings that do not exist, pages that the contents leave out or name twice.

    python3 docs/tools/links.py            # exits with 1 and lists them

Only links within the repository are followed. Headings count by the names that GitHub and mdBook give them.
"""
import re
import sys

from blocks import REPOSITORY

LINK = re.compile(r"(?<!\\)!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()]*\))?)\)")


def without_code(text):
    """A page without its blocks and spans of code, which have no links."""
    text = re.sub(r"^(`{3,}|~{3,}).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?<=\n\n)(?:    .*\n|\n)+", "\n", text)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "code", text)


def names(path):
    """The names of a page's headings."""
    found, text = set(), re.sub(r"^(`{3,}|~{3,}).*?^\1", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain.replace("`", "")).replace(" ", "-"))
    return found


def pages():
    """Every page but the reports that tests compare with."""
    folders = [REPOSITORY.glob("*.md"), *((REPOSITORY / name).rglob("*.md") for name in ("docs", "bench", "python", "crates", "testdata"))]
    return sorted(page for folder in folders for page in folder if "expected" not in page.parts)


def broken():
    """What is wrong, as lines."""
    wrong, docs = [], REPOSITORY / "docs"
    contents = (docs / "SUMMARY.md").read_text()
    for page in pages():
        place = page.relative_to(REPOSITORY)
        is_site = docs in page.parents
        for link in LINK.findall(without_code(page.read_text())):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, heading = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists():
                wrong.append(f"{place}: `{link}` does not exist")
            elif heading and target.suffix == ".md" and heading not in names(target):
                wrong.append(f"{place}: `{link}`: no such heading")
            elif is_site and docs not in target.parents:
                wrong.append(f"{place}: `{link}` is not part of the site")
        if is_site and page.name != "SUMMARY.md" and (count := contents.count(f"({page.relative_to(docs)})")) != 1:
            wrong.append(f"{place} is {count} times in docs/SUMMARY.md instead of once")
    return wrong


if __name__ == "__main__":
    found = broken()
    print("\n".join(found))
    sys.exit(bool(found))
