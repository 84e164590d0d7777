"""Loops over the bytes of a pickle, compiled by Numba: opcodes to an arena of objects, and the calls in it to numbers.

An object is a number: `tag` says what it is, `first` and `count` where it lies. A whole number keeps its value in `first`; a text the place and
length of its bytes; a list, tuple or dict the place and number of its children in `kids`. Nothing is built that is not asked for.

What is known are the opcodes that recorders write. Whatever else comes, or breaks a rule, ends the walk with a code, and the plain reader decides.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

__all__ = [
    "DICT",
    "FALSE",
    "FLOAT",
    "FULL",
    "INT",
    "LIST",
    "MISSING",
    "NONE",
    "REFUSED",
    "TEXT",
    "TRUE",
    "TUPLE",
    "WALKED",
    "are_shapes",
    "are_tagged",
    "are_texts",
    "flags",
    "intern",
    "number_leaves",
    "number_lists",
    "number_nested",
    "number_pairs",
    "pick",
    "spell",
    "walk",
    "whole_numbers",
]

NONE, FALSE, TRUE, INT, TEXT, LIST, DICT, TUPLE, FLOAT = range(9)
WALKED, FULL, REFUSED = 0, 1, 2
MISSING = -1
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True, inline="always")
def _little(data, at, width):
    value = np.int64(0)
    for i in range(width):
        value |= np.int64(data[at + i]) << (8 * i)
    return value


@njit(cache=True, nogil=True)
def walk(data, tag, first, count, kids, stack, marks, memo):
    """-> (code, root, number of objects, highest place in `memo` that was used). `memo` must be filled with -1."""
    end, at, objects, children, top, depth, memoized, highest = data.size, 2, 3, 0, 0, 0, 0, -1
    tag[0], tag[1], tag[2] = NONE, FALSE, TRUE
    fence = 0
    if end < 2 or data[0] != 0x80 or data[1] < 2 or data[1] > 5:
        return REFUSED, 0, 0, -1
    while at < end:
        op = data[at]
        at += 1
        if objects + 1 >= tag.size or top + 1 >= stack.size:
            return FULL, 0, 0, highest
        if op == 0x68 or op == 0x6A:  # BINGET, LONG_BINGET
            width = 1 if op == 0x68 else 4
            if at + width > end:
                return REFUSED, 0, 0, highest
            place = _little(data, at, width)
            at += width
            if place >= memo.size or memo[place] < 0:
                return REFUSED, 0, 0, highest
            stack[top] = memo[place]
            top += 1
        elif op == 0x4B or op == 0x4D or op == 0x4A:  # BININT1, BININT2, BININT
            width = 1 if op == 0x4B else 2 if op == 0x4D else 4
            if at + width > end:
                return REFUSED, 0, 0, highest
            value = _little(data, at, width)
            if width == 4 and value >= 2147483648:
                value -= 4294967296
            at += width
            tag[objects], first[objects] = INT, value
            stack[top] = objects
            top += 1
            objects += 1
        elif op == 0x8A:  # LONG1
            if at >= end:
                return REFUSED, 0, 0, highest
            width = np.int64(data[at])
            at += 1
            if width > 8 or at + width > end:
                return REFUSED, 0, 0, highest
            value = _little(data, at, width)
            at += width
            if 0 < width < 8 and data[at - 1] >= 128:
                value -= np.int64(1) << (8 * width)
            tag[objects], first[objects] = INT, value
            stack[top] = objects
            top += 1
            objects += 1
        elif op == 0x28:  # MARK
            if depth >= marks.size:
                return REFUSED, 0, 0, highest
            marks[depth] = top
            depth += 1
            fence = top
        elif op == 0x5D or op == 0x7D or op == 0x29:  # EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE
            tag[objects] = LIST if op == 0x5D else DICT if op == 0x7D else TUPLE
            first[objects], count[objects] = 0, 0
            stack[top] = objects
            top += 1
            objects += 1
        elif op == 0x65 or op == 0x75 or op == 0x61 or op == 0x73:  # APPENDS, SETITEMS, APPEND, SETITEM
            is_list = op == 0x65 or op == 0x61
            if op == 0x65 or op == 0x75:
                if depth == 0:
                    return REFUSED, 0, 0, highest
                depth -= 1
                start = np.int64(marks[depth])
                fence = np.int64(marks[depth - 1]) if depth else 0
            else:
                start = top - (1 if is_list else 2)
            if start - 1 < fence:
                return REFUSED, 0, 0, highest
            owner = stack[start - 1]
            more = top - start
            if tag[owner] != (LIST if is_list else DICT) or (not is_list and more % 2):
                return REFUSED, 0, 0, highest
            if not is_list:
                for i in range(start, top, 2):  # Python has no dict with a list for a key
                    if tag[stack[i]] != TEXT and tag[stack[i]] != INT:
                        return REFUSED, 0, 0, highest
            have = np.int64(count[owner])
            if children + have + more > kids.size:
                return FULL, 0, 0, highest
            if have and first[owner] + have != children:
                for i in range(have):
                    kids[children + i] = kids[first[owner] + i]
                first[owner] = children
                children += have
            elif have == 0:
                first[owner] = children
            for i in range(more):
                kids[children + i] = stack[start + i]
            children += more
            count[owner] = have + more
            top = start
        elif op == 0x85 or op == 0x86 or op == 0x87 or op == 0x74:  # TUPLE1, TUPLE2, TUPLE3, TUPLE
            if op == 0x74:
                if depth == 0:
                    return REFUSED, 0, 0, highest
                depth -= 1
                start = np.int64(marks[depth])
                fence = np.int64(marks[depth - 1]) if depth else 0
            else:
                start = top - (np.int64(op) - 0x84)
                if start < fence:
                    return REFUSED, 0, 0, highest
            more = top - start
            if children + more > kids.size:
                return FULL, 0, 0, highest
            tag[objects], first[objects], count[objects] = TUPLE, children, more
            for i in range(more):
                kids[children + i] = stack[start + i]
            children += more
            top = start
            stack[top] = objects
            top += 1
            objects += 1
        elif op == 0x58 or op == 0x8C:  # BINUNICODE, SHORT_BINUNICODE
            width = 4 if op == 0x58 else 1
            if at + width > end:
                return REFUSED, 0, 0, highest
            length = _little(data, at, width)
            at += width
            if at + length > end:
                return REFUSED, 0, 0, highest
            high = np.uint8(0)
            for i in range(at, at + length):
                high |= data[i]
            if high >= 128:
                return REFUSED, 0, 0, highest
            tag[objects], first[objects], count[objects] = TEXT, at, length
            at += length
            stack[top] = objects
            top += 1
            objects += 1
        elif op == 0x4E or op == 0x89 or op == 0x88:  # NONE, NEWFALSE, NEWTRUE
            stack[top] = NONE if op == 0x4E else FALSE if op == 0x89 else TRUE
            top += 1
        elif op == 0x71 or op == 0x72:  # BINPUT, LONG_BINPUT
            width = 1 if op == 0x71 else 4
            if at + width > end or top <= fence:
                return REFUSED, 0, 0, highest
            place = _little(data, at, width)
            at += width
            if place >= memo.size:
                return REFUSED, 0, 0, highest
            if memo[place] < 0:
                memoized += 1
            memo[place] = stack[top - 1]
            highest = max(highest, place)
        elif op == 0x94:  # MEMOIZE
            if top <= fence or memoized >= memo.size:
                return REFUSED, 0, 0, highest
            if memo[memoized] >= 0:
                return REFUSED, 0, 0, highest
            memo[memoized] = stack[top - 1]
            highest = max(highest, memoized)
            memoized += 1
        elif op == 0x47:  # BINFLOAT
            if at + 8 > end:
                return REFUSED, 0, 0, highest
            tag[objects], first[objects] = FLOAT, at
            at += 8
            stack[top] = objects
            top += 1
            objects += 1
        elif op == 0x95:  # FRAME
            if at + 8 > end:
                return REFUSED, 0, 0, highest
            length = _little(data, at, 8)
            at += 8
            if length < 0 or at + length > end:
                return REFUSED, 0, 0, highest
        elif op == 0x2E:  # STOP
            if top != 1 or depth != 0:
                return REFUSED, 0, 0, highest
            return WALKED, np.int64(stack[0]), objects, highest
        else:
            return REFUSED, 0, 0, highest
    return REFUSED, 0, 0, highest


@njit(cache=True, nogil=True)
def _is_name(data, tag, first, count, one, names, starts, number):
    length = starts[number + 1] - starts[number]
    if tag[one] != TEXT or count[one] != length:
        return False
    for i in range(length):  # noqa: SIM110 - a generator costs more than the loop
        if data[first[one] + i] != names[starts[number] + i]:
            return False
    return True


@njit(cache=True, nogil=True)
def pick(data, tag, first, count, kids, entries, names, starts, field_of, out):
    """The object of each field (row) of each call (column), MISSING where it has none. False where a call is no dict with texts as keys.

    `field_of`, filled with -2, remembers which field a key names.
    """
    fields = starts.size - 1
    for call in range(count[entries]):
        one = kids[first[entries] + call]
        if tag[one] != DICT:
            return False
        for field in range(fields):
            out[field, call] = MISSING
        for i in range(first[one], first[one] + count[one], 2):
            key = kids[i]
            field = field_of[key]
            if field == -2:
                if tag[key] != TEXT:
                    return False
                field = -1
                for number in range(fields):
                    if _is_name(data, tag, first, count, key, names, starts, number):
                        field = number
                        break
                field_of[key] = field
            if field >= 0:
                out[field, call] = kids[i + 1]
    return True


@njit(cache=True, nogil=True)
def whole_numbers(tag, first, objects, values, known):
    """False where one is neither a whole number nor None."""
    for i in range(objects.size):
        one = objects[i]
        if one < 0:
            return False
        if tag[one] == INT:
            values[i], known[i] = first[one], True
        elif tag[one] == NONE:
            values[i], known[i] = 0, False
        else:
            return False
    return True


@njit(cache=True, nogil=True)
def flags(tag, objects, values, known):
    """False where one is neither true, false nor None."""
    for i in range(objects.size):
        one = objects[i]
        if one < 0 or one > 2:
            return False
        values[i], known[i] = one == TRUE, one != NONE
    return True


@njit(cache=True, nogil=True)
def are_shapes(tag, first, count, kids, objects, max_dims):
    """Whether each is a list of lists of whole numbers."""
    for i in range(objects.size):
        one = objects[i]
        if one < 0 or tag[one] != LIST:
            return False
        for j in range(first[one], first[one] + count[one]):
            shape = kids[j]
            if tag[shape] != LIST or count[shape] > max_dims:
                return False
            for k in range(first[shape], first[shape] + count[shape]):
                if tag[kids[k]] != INT:
                    return False
    return True


@njit(cache=True, nogil=True)
def are_texts(tag, first, count, kids, objects, shortest, longest, or_tuples):
    """Whether each is a list (or tuple) of so many texts."""
    for i in range(objects.size):
        one = objects[i]
        if one < 0 or not (tag[one] == LIST or (or_tuples and tag[one] == TUPLE)) or count[one] < shortest or count[one] > longest:
            return False
        for j in range(first[one], first[one] + count[one]):
            if tag[kids[j]] != TEXT:
                return False
    return True


@njit(cache=True, nogil=True)
def are_tagged(tag, objects, one_tag, other_tag):
    """Whether each is of one of two tags."""
    for i in range(objects.size):
        one = objects[i]
        if one < 0 or (tag[one] != one_tag and tag[one] != other_tag):
            return False
    return True


@njit(cache=True, nogil=True, inline="always")
def _mix(have, value):
    have = (have ^ uint64(value)) * _MULTIPLIER
    return have ^ (have >> uint64(29))


@njit(cache=True, nogil=True)
def intern(data, tag, first, count, objects, slots, leaf):
    """A number for every object that is no container, equal where the values are: what is no whole number gets one by kind and text.

    `slots` is a table for the texts, a power of two larger than their number. Lists get -1. Returns False where it is too small.
    """
    mask = slots.size - 1
    slots[:] = -1
    left = slots.size - 1
    for one in range(objects):
        kind = tag[one]
        if kind == INT:
            leaf[one] = first[one]
        elif kind == TEXT:
            start, length = first[one], np.int64(count[one])
            have = uint64(length)
            i = start
            while i + 8 <= start + length:
                word = uint64(0)
                for j in range(8):
                    word |= uint64(data[i + j]) << uint64(8 * j)
                have = (have ^ word) * _MULTIPLIER
                have ^= have >> uint64(29)
                i += 8
            while i < start + length:
                have = (have ^ uint64(data[i])) * _MULTIPLIER
                have ^= have >> uint64(29)
                i += 1
            slot = np.int64(have >> uint64(20)) & mask
            while True:
                known = slots[slot]
                if known < 0:
                    left -= 1
                    if left <= 0:
                        return False
                    slots[slot] = one
                    leaf[one] = one
                    break
                is_same = count[known] == length
                if is_same:
                    other = first[known]
                    for i in range(length):
                        if data[other + i] != data[start + i]:
                            is_same = False
                            break
                if is_same:
                    leaf[one] = known
                    break
                slot = (slot + 1) & mask
        else:
            leaf[one] = one if kind < INT else -1
    return True


@njit(cache=True, nogil=True)
def number_leaves(leaf, objects, slots, numbers, places):
    """Numbers for leaves of one kind (or None), in order of first sight: of each call, and the place of the first of each. Returns how many.

    `slots` has room for twice as many as there are calls, a power of two.
    """
    mask = slots.size - 1
    slots[:] = -1
    found = 0
    before = -1
    for i in range(objects.size):
        one = objects[i]
        if one == before:
            numbers[i] = numbers[i - 1]
            continue
        before = one
        value = leaf[one]
        slot = np.int64((uint64(value) * _MULTIPLIER) >> uint64(30)) & mask
        while True:
            known = slots[slot]
            if known < 0:
                slots[slot] = found
                places[found] = i
                numbers[i] = found
                found += 1
                break
            if leaf[objects[places[known]]] == value:
                numbers[i] = known
                break
            slot = (slot + 1) & mask
    return found


@njit(cache=True, nogil=True)
def number_nested(tag, first, count, kids, leaf, objects, slots, numbers, places):
    """As `number_leaves`, of lists of leaves or of lists of leaves."""
    mask = slots.size - 1
    slots[:] = -1
    found = 0
    for i in range(objects.size):
        one = objects[i]
        have = uint64(count[one] + 17)
        for j in range(first[one], first[one] + count[one]):
            kid = kids[j]
            if tag[kid] == LIST:
                have = (have ^ uint64(count[kid] + 1000003)) * _MULTIPLIER
                have ^= have >> uint64(29)
                for k in range(first[kid], first[kid] + count[kid]):
                    have = (have ^ uint64(leaf[kids[k]])) * _MULTIPLIER
                    have ^= have >> uint64(29)
            else:
                have = (have ^ uint64(leaf[kid])) * _MULTIPLIER
                have ^= have >> uint64(29)
        slot = np.int64(have >> uint64(20)) & mask
        while True:
            known = slots[slot]
            if known < 0:
                slots[slot] = found
                places[found] = i
                numbers[i] = found
                found += 1
                break
            other = objects[places[known]]
            is_same = count[one] == count[other]
            if is_same:
                for j in range(count[one]):
                    a, b = kids[first[one] + j], kids[first[other] + j]
                    if tag[a] != tag[b] or (tag[a] == LIST and count[a] != count[b]):
                        is_same = False
                    elif tag[a] == LIST:
                        for k in range(count[a]):
                            if leaf[kids[first[a] + k]] != leaf[kids[first[b] + k]]:
                                is_same = False
                                break
                    elif leaf[a] != leaf[b]:
                        is_same = False
                    if not is_same:
                        break
            if is_same:
                numbers[i] = known
                break
            slot = (slot + 1) & mask
    return found


@njit(cache=True, nogil=True)
def number_pairs(left, right, slots, numbers, places):
    """As `number_leaves`, of pairs of numbers."""
    mask = slots.size - 1
    slots[:] = -1
    found = 0
    for i in range(left.size):
        have = (uint64(left[i]) * _MULTIPLIER) ^ uint64(right[i])
        slot = np.int64((have * _MULTIPLIER) >> uint64(30)) & mask
        while True:
            known = slots[slot]
            if known < 0:
                slots[slot] = found
                places[found] = i
                numbers[i] = found
                found += 1
                break
            other = places[known]
            if left[other] == left[i] and right[other] == right[i]:
                numbers[i] = known
                break
            slot = (slot + 1) & mask
    return found


@njit(cache=True, nogil=True)
def number_lists(first, count, kids, lists, slots, numbers, places):
    """As `number`, of lists whose children are the same objects. MISSING counts as one of its own."""
    mask = slots.size - 1
    slots[:] = -1
    found = 0
    for i in range(lists.size):
        one = lists[i]
        have = uint64(1)
        if one >= 0:
            have = uint64(count[one] + 2)
            for j in range(first[one], first[one] + count[one]):
                have = _mix(have, kids[j])
        slot = np.int64(have >> uint64(20)) & mask
        while True:
            known = slots[slot]
            if known < 0:
                slots[slot] = found
                places[found] = i
                numbers[i] = found
                found += 1
                break
            other = lists[places[known]]
            is_same = one == other
            if not is_same and one >= 0 and other >= 0 and count[one] == count[other]:
                is_same = True
                for j in range(count[one]):
                    if kids[first[one] + j] != kids[first[other] + j]:
                        is_same = False
                        break
            if is_same:
                numbers[i] = known
                break
            slot = (slot + 1) & mask
    return found


@njit(cache=True, nogil=True)
def spell(data, tag, first, count, kids, lists, names, starts, field_of, spelled, ends):
    """Writes the two texts (`names`) of every frame of these lists, each behind its length in four bytes; `ends` = where the text of each list ends.

    False where a frame is no dict that has both, or there is no room.
    """
    at = 0
    for i in range(lists.size):
        one = lists[i]
        if one >= 0:
            for j in range(first[one], first[one] + count[one]):
                frame = kids[j]
                if tag[frame] != DICT:
                    return False
                name, file = MISSING, MISSING
                for place in range(first[frame], first[frame] + count[frame], 2):
                    key = kids[place]
                    field = field_of[key]
                    if field == -2:
                        field = -1
                        for number in range(2):
                            if _is_name(data, tag, first, count, key, names, starts, number):
                                field = number
                        field_of[key] = field
                    if field == 0:
                        name = kids[place + 1]
                    elif field == 1:
                        file = kids[place + 1]
                if name < 0 or file < 0 or tag[name] != TEXT or tag[file] != TEXT:
                    return False
                for text in (name, file):
                    length = np.int64(count[text])
                    if at + length + 4 > spelled.size:
                        return False
                    for shift in range(4):
                        spelled[at + shift] = (length >> (8 * shift)) & 255
                    at += 4
                    for place in range(length):
                        spelled[at + place] = data[first[text] + place]
                    at += length
        ends[i] = at
    return True
