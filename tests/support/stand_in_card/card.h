// What the two halves of the stand-in card share: streams.cpp keeps the books, operators.cpp computes.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <cstdint>

namespace card {

constexpr int kMost = 4;  // cards of a process

// Tells Python of one event, by kind; returns a number for the place in the code where it happened. `earlier`: that of
// a copy which this event is about, -1 where there is none. Never called with the lock of the books held: it takes the GIL.
int64_t note(const char* kind, int64_t earlier = -1);

c10::Allocator* memory();
c10::Allocator* pinned_memory();
bool is_pinned(const void* data);

int current_card();
int64_t current_stream(int card);
int64_t exchange_stream(int card, int64_t stream);
int64_t new_stream(int card);

// Lets the cards compute whatever operator the CPU has a kernel for.
void take_operators();

// A part of a tensor's memory, and the storage that owns it.
struct Part {
  char* begin;
  size_t bytes;
  c10::StorageImpl* storage;
};

// How far a stream was when an event was recorded: entries begun of its own, operators of its card.
struct Mark {
  int card = 0;
  int64_t stream = 0;
  uint64_t begun = 0, operators = 0;
};

Mark mark_of(int card, int64_t stream);
// Whatever `stream` of `card` does from now on comes behind `mark`.
void wait_for(int card, int64_t stream, const Mark& mark);
// The host waits for `mark`.
void reach(const Mark& mark);
// Copies that have begun and not arrived.
size_t on_the_way(int card);

// Memory of a card goes. Notes the copies that still needed it.
void freed(const char* data, size_t bytes);
// An operator of `card` has made new memory.
void made(int card, const char* data, size_t bytes);
// An operator of `card` reads, or writes too, this part now. Notes what a copy on its way makes of that.
void touched(int card, const Part& part, bool writes);
// Begins a copy on the current stream of `card`, from the host, to it, or from card `source` (-1: none): it arrives when somebody waits for it. `staged`: with the values of now,
// as a copy on the computing stream (number 0) and one of pageable memory have them; else with those of its arrival.
void begin_copy(int card, const Part& to, const Part& from, bool staged, int source = -1);
// Begins a copy from `card`, on its current stream, to card `receiver`. As torch has it, the computing stream of the
// receiver comes behind the copy: it arrives when that card touches the target, or when somebody waits for it.
void begin_copy_between(int card, int receiver, const Part& to, const Part& from);
// The host waits for everything that one stream of `card` does, or (-1) all of them.
void synchronize(int card, int64_t stream = -1);

}  // namespace card
