"""Names in a text, found by how they are written: without a model, in any script that marks them.

Case marks them in Latin, Cyrillic and Greek, quotation marks everywhere, katakana in Japanese. Chinese marks
nothing, so what stands between common function words is taken for one. Arabic, Hindi, Korean and the like
have only their quotations. All of this guesses: it is for seeds of a search, and for texts that no
recogniser at hand can read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TypeAlias

__all__ = ["candidate_names", "main_script", "title_name"]

Match: TypeAlias = "re.Match[str]"
Found: TypeAlias = tuple[int, str]  # where it begins, and the name

_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HIRAGANA = "\u3041-\u309f"
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30fe\u31f0-\u31ff\uff66-\uff9f"
_HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"
_LETTER = rf"[^\W_{_HAN}{_HIRAGANA}{_KATAKANA}{_HANGUL}]"  # digits too
_SCRIPTS = {
    "latin": re.compile(
        "[A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff\uff21-\uff3a\uff41-\uff5a]"
    ),
    "greek": re.compile("[\u0370-\u03ff\u1f00-\u1fff]"),
    "cyrillic": re.compile("[\u0400-\u052f]"),
    "cjk": re.compile(f"[{_HAN}{_HIRAGANA}{_KATAKANA}]"),
    "hangul": re.compile(f"[{_HANGUL}]"),
    "other": re.compile("[\u0530-\u10ff\u1200-\u1cff]"),
}
_MASK = "\0"  # stands where something was taken out, so that its neighbours do not join

_DISAMBIGUATION = re.compile(r"\s*[(（][^()（）]*[)）]\s*$")
_MOST_WORDS = 10  # a longer run of capitals is a heading
_LONGEST_QUOTE = 80  # characters; a longer quotation is speech
_HAN_LENGTHS = range(2, 13)  # characters


def title_name(title: str) -> str:
    """What a title names, without the bracket that tells it from others: `Theodred II (Bishop of Elmham)`."""
    return " ".join(_DISAMBIGUATION.sub("", title).split()) or " ".join(title.split())


def candidate_names(text: str, *, initial: bool = True) -> list[str]:
    """What `text` seems to name, in order of appearance, each spelling once.

    Runs of capitalised words (with "of", "von" and their like inside), quotations, katakana, and in Chinese
    what stands between function words. Question words, articles and pronouns do not begin a name.

    Args:
        text: a question, a sentence, a passage.
        initial: whether a single word counts that is capitalised only where a sentence begins. A question
            is worth the guess, a text that fills a graph is not.
    """
    rest = _QUOTED.sub(_masked, text)
    found = [*_quoted(text), *_capitalised(rest, initial), *_katakana(rest), *_han(rest)]
    return _unique(name for _, name in sorted(found, key=itemgetter(0)))


def main_script(text: str) -> str:
    """The script of most letters: latin, greek, cyrillic, cjk, hangul, other, or "" where there are none.

    A letter of the last four counts twice, since a word there has half as many of them.
    """
    weights = {"cjk": 2, "hangul": 2, "other": 2}
    counts = {name: weights.get(name, 1) * len(letters.findall(text)) for name, letters in _SCRIPTS.items()}
    script = max(counts, key=lambda name: counts[name])
    return script if counts[script] else ""


def _unique(names: Iterable[str]) -> list[str]:
    seen: dict[str, str] = {}
    for name in names:
        seen.setdefault(name.casefold(), name)
    return list(seen.values())


def _masked(match: Match) -> str:
    return _MASK * len(match.group())


def _words(text: str) -> frozenset[str]:
    return frozenset(text.casefold().split())  # casefold makes σ of the final ς


# --- quotations ---------------------------------------------------------------------------------------------------

_PAIRS = tuple(zip('"“„«「『《〈', '"”“»」』》〉', strict=True))
_QUOTED = re.compile(
    "|".join(
        rf"{opening}(?=[^{closing}]{{0,{_LONGEST_QUOTE}}}\w)[^{opening}{closing}\n]{{1,{_LONGEST_QUOTE}}}{closing}"
        for opening, closing in _PAIRS
    )
)


def _quoted(text: str) -> Iterator[Found]:
    for match in _QUOTED.finditer(text):
        yield match.start(), match.group()[1:-1].strip(" ,.")


# --- capitals -----------------------------------------------------------------------------------------------------

_POSSESSIVE = re.compile(r"['’]s?$")
_WORD = re.compile(
    rf"{_LETTER}(?:{_LETTER}|[\u0300-\u036f]|['’&-](?={_LETTER})|(?<!{_LETTER}{{2}})\.(?={_LETTER}))*(?:\+\+|\+|\#)?"
)
_GAP = re.compile(r"[^\S\n]+(?:&[^\S\n]+)?")
_GAP_AFTER_ABBREVIATION = re.compile(r"\.[^\S\n]*")
_ABBREVIATION = re.compile(
    r"(?:\w\.)*\w|St|Ste|Dr|Mr|Mrs|Ms|Prof|Mt|Ft|Gen|Col|Capt|Lt|Sgt|Rev|Jr|Sr|Sen|Gov|Hon|No|Vol"
)
_LEADING_NUMBER = re.compile(r"\d+(?:st|nd|rd|th)|\d{1,3}")
_YEAR = re.compile(r"\d{4}")
_INSIDE = _words("of the de la le les du des der den dem di da do dos das del della y e")
_BEFORE = _words("von van bin ibn al zu")
_ARTICLES = frozenset(["the", "a", "an"])
# Words that begin a question or a sentence and no name, except where the name itself begins so.
_BEGINNINGS = (
    # English
    _words("""
        a about according across after again against all along also although among an and another any are
        around as at because before behind below beneath beside between beyond both but by can could despite
        did do does during each either every few film find first for from give had has have he hence her here
        him his how however i if in inside into is it its later let list many may me most movie much my name
        near neither no nor not now of off on once one only onto or other our out over per please several shall
        she should show since so some such tell than that the their them then there therefore these they this
        those though through throughout thus to today together two under until upon was we were what what's
        whats when where where's whereas which while who who's whom whose why will with within without would
        yet you your january february march april june july august september october november december monday
        tuesday wednesday thursday friday saturday sunday""")
    # French, German, Spanish, Italian
    | _words("""
        qui que quoi quand où quel quelle quels quelles comment pourquoi combien est le la les un une des il
        elle dans en wer wen wem wessen wo wann wie warum wieso welche welcher welches welchen der die das ein
        eine er sie es im am quién quien dónde donde cuándo cuando qué cuál cuáles cómo el los las una él ella
        chi dove che quale quali come perché lo gli uno di""")
    # Russian, Ukrainian, Greek
    | _words("""
        кто что где когда какой какая какое какие каком какую как почему зачем чей чья чьё сколько куда откуда
        в во на по из за к ко с со у о об от до для при после перед через под над между он она оно они его её
        их это этот эта эти тот та те и а но или если так также там тогда затем потом позже первый все хто що
        де коли який яка яке які він вона воно вони це у з із та але ποιος ποια ποιο ποιοι πού που πότε ποτε τι
        πώς γιατί πόσα ο η το οι τα τον την του της των στο στη στην στον στις σε με από για και ένας μια ένα
        αυτός αυτή αυτό είναι ήταν""")
)
_SORTS = _words("film movie novel book album song band play series disambiguation")


def _capitalised(text: str, initial: bool) -> Iterator[Found]:
    runs = [run for run in (_trimmed(text, run) for run in _runs(text)) if _is_plausible(run)]
    elsewhere = {word.group() for run in runs for word in run if not _begins_sentence(text, word.start())}
    for run in runs:
        if initial or len(run) > 1 or run[0].group() in elsewhere:
            yield from _spellings(text, run)


def _is_plausible(run: list[Match]) -> bool:
    words = {word.group().casefold() for word in run}
    ordinary = words <= _BEGINNINGS or words <= _SORTS or all(word.isdigit() for word in words - _BEGINNINGS)
    return 0 < len(run) <= _MOST_WORDS and not ordinary


def _spellings(text: str, run: list[Match]) -> Iterator[Found]:
    """The run, and its two parts where a possessive may join two names: "Einstein's Nobel Prize"."""
    yield _joined(text, run)
    for place, word in enumerate(run[:-1], 1):
        if _POSSESSIVE.search(word.group()):
            yield _joined(text, run[:place])
            yield _joined(text, run[place:])


def _joined(text: str, run: list[Match]) -> Found:
    return run[0].start(), _POSSESSIVE.sub("", text[run[0].start() : run[-1].end()])


def _runs(text: str) -> Iterator[list[Match]]:
    """Capitalised words in a row, as they stand, with the particles between them."""
    run: list[Match] = []
    open_: list[Match] = []  # particles that join only if a name follows
    any_latin = bool(_SCRIPTS["cjk"].search(text))  # where capitals are rare, all of another script is a name
    for word in _WORD.finditer(text):
        if (run or open_) and not _joins(text, (open_ or run)[-1], word):
            yield run
            run, open_ = [], []
        if _is_name(word.group(), any_latin) or (run and not open_ and _is_number(word.group())):
            run += [*open_, word]
            open_ = []
        elif _may_join(word.group(), bool(run)):
            open_.append(word)
        else:
            yield run
            run, open_ = [], []
    yield run


def _joins(text: str, left: Match, right: Match) -> bool:
    gap = text[left.end() : right.start()]
    after_abbreviation = _ABBREVIATION.fullmatch(left.group()) and _GAP_AFTER_ABBREVIATION.fullmatch(gap)
    return bool(_GAP.fullmatch(gap) or after_abbreviation)


def _is_name(word: str, any_latin: bool) -> bool:
    return word != word.lower() or (any_latin and len(word) > 2 and word.isalpha() and word != word.upper())


def _is_number(word: str) -> bool:
    return word.isdigit() and not _YEAR.fullmatch(word)


def _may_join(word: str, inside: bool) -> bool:
    return word in _BEFORE or (word in _INSIDE if inside else bool(_LEADING_NUMBER.fullmatch(word)))


def _trimmed(text: str, run: list[Match]) -> list[Match]:
    """Without what is no part of the name: where a sentence begins any of `_BEGINNINGS`, elsewhere an article."""
    if not run:
        return run
    foreign = _BEGINNINGS if _begins_sentence(text, run[0].start()) else _ARTICLES
    start = 0
    while start < len(run) and _is_foreign(text, run[start], foreign):
        start += 1
    return run[start:]


def _is_foreign(text: str, word: Match, foreign: frozenset[str]) -> bool:
    is_initial = text.startswith(".", word.end())  # "A. K. M. Nurul Islam"
    return not is_initial and (word.group().casefold() in foreign or word.group() in _INSIDE)


def _begins_sentence(text: str, place: int) -> bool:
    before = text[max(0, place - 8) : place].rstrip(" \t([{\"'“„«‘¿¡—–-")
    return not before or before[-1] in ".!?…\n:"


# --- East Asian scripts -------------------------------------------------------------------------------------------

_KATAKANA_RUN = re.compile(f"[{_KATAKANA}]{{2,}}(?:[・·＝=][{_KATAKANA}]+)*")
_HAN_RUN = re.compile(f"[{_HAN}]+(?:[·・‧•][{_HAN}]+)*")
_HIRAGANA_LETTER = re.compile(f"[{_HIRAGANA}]")
# Words that hold a character at which a run would be cut.
_HAN_KEPT = _words("""
    共和 和平 和谐 饱和 昭和 中和 和田 和县 呼和浩特 华为 有限 有机 有色 国有 私有 自由 与会 参与 了解 目的
    的士 的里雅斯特 现在 存在 内在 实在 潜在 从化 从江 他汀 其他 吉他 维他命 达到 于阗 于洪 单于 淳于 及格 埃及
    普及 过程 通过 超过 写作""")
_HAN_CUTS = _words("""
    为什么 什么 怎么样 怎么 怎样 如何 哪里 哪儿 哪个 哪一年 哪一个 哪一位 哪位 哪些 哪年 哪国 哪座 哪部 哪 谁
    何时 何地 何处 多少 多大 多久 几个 几年 是不是 是否 有没有 吗 呢 吧 出生于 出生在 出生 生于 卒于 死于 去世
    逝世 位于 坐落于 成立于 成立 建立 建于 创立 创建 创办 创作 发表 出版 发现 发明 提出 获得 荣获 离开 前往
    来到 去了 回到 到达 移居 担任 出任 就任 领导 制造 认为 成为 作为 称为 称作 被称为 属于 隶属于 来自 毕业于
    毕业 就读于 就读 上大学 任教于 任教 任职于 任职 工作 生活 居住 结婚 执导 导演 主演 拍摄 撰写 编写 写 叫做
    名叫 叫 包括 包含 以及 由于 关于 对于 至于 因为 因此 所以 但是 然而 而且 并且 并因 不过 虽然 如果 或者 同时
    当时 后来 之后 之前 之间 其中 期间 直到 以后 以前 随后 最后 最早 最初 曾经 曾 已经 已 没有 可以 能够 主要
    著名 一批 一个 一位 一种 一名 一座 一部 一台 一条 第一 这里 那里 这个 那个 这些 那些 这 那 过的 自己 我们
    你们 他们 她们 它们 我 你 他 她 它 们 的 了 着 在 是 和 与 及 或 于 从 到 被 把 为 有 也 都 将 使 让 向 并
    而 其 之 后者 前者""")


def _any_of(words: Iterable[str]) -> str:
    return "|".join(sorted(sorted(words), key=len, reverse=True))


_HAN_CUT = re.compile(
    rf"({_any_of(_HAN_KEPT)})|{_any_of(_HAN_CUTS)}|(?<=\d)(?:年代|世纪|年|月|日|岁)|(?<![皇太王])后(?=[，,])"
)


def _katakana(text: str) -> Iterator[Found]:
    for match in _KATAKANA_RUN.finditer(text):
        yield match.start(), match.group()


def _han(text: str) -> Iterator[Found]:
    """Runs of Han characters: between kana as they are, in Chinese cut at function words."""
    if not _HIRAGANA_LETTER.search(text):
        text = _HAN_CUT.sub(lambda match: match.group() if match.group(1) else _masked(match), text)
    for match in _HAN_RUN.finditer(text):
        if len(match.group()) in _HAN_LENGTHS:
            yield match.start(), match.group()
