// The books of the stand-in cards: streams, events and copies on their way. Computing happens at once, on the computing
// stream (number 0) of each card; a copy on another stream happens when somebody waits for it, and not before.
#include "card.h"

#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

namespace card {
namespace {

using Storage = c10::weak_intrusive_ptr<c10::StorageImpl>;

struct Entry {
  bool waits = false;  // for `mark` of another stream; else it is a copy
  Mark mark;
  Part to{}, from{};
  Storage to_storage{c10::intrusive_ptr<c10::StorageImpl>()}, from_storage{c10::intrusive_ptr<c10::StorageImpl>()};
  std::vector<char> staged;  // the values of a copy on the computing stream
  bool ordered = true;
  int64_t site = -1;
  int receiver = -1;  // the card whose computing stream comes behind it
};

struct Stream {
  std::deque<Entry> entries;
  uint64_t begun = 0;
  std::array<uint64_t, kMost> seen{};  // operators of each card that it is known to come behind
};

struct Card {
  std::deque<Stream> streams{1};
  uint64_t operators = 0;
  std::map<const char*, std::pair<size_t, uint64_t>> written;  // where, how much, and by which operator
};

using Noted = std::vector<std::pair<const char*, int64_t>>;

std::recursive_mutex lock;
std::array<Card, kMost> cards;
thread_local std::array<int64_t, kMost> stream_here{};

bool overlap(const Part& one, const char* begin, size_t bytes) {
  return one.begin < begin + bytes && begin < one.begin + one.bytes;
}

void tell(const Noted& noted) {
  for (auto& [kind, site] : noted) note(kind, site);
}

void arrive(const Entry& copy, Noted& noted) {
  auto to = copy.to_storage.lock(), from = copy.from_storage.lock();
  if (!copy.to.bytes) return;
  if (!to || (!from && copy.staged.empty())) {
    noted.emplace_back("freed before it arrived", copy.site);
  } else if (copy.ordered) {
    std::memcpy(copy.to.begin, copy.staged.empty() ? copy.from.begin : copy.staged.data(), copy.to.bytes);
  }
}

// The last operator of a card that wrote to this part.
uint64_t last_write(const Card& card, const Part& part) {
  uint64_t found = 0;
  for (auto& [begin, what] : card.written)
    if (overlap(part, begin, what.first)) found = std::max(found, what.second);
  return found;
}

// Lets the stream of `mark` come as far as that.
void reach(const Mark& mark, Noted& noted) {
  Stream& stream = cards[mark.card].streams[mark.stream];
  while (!stream.entries.empty() && stream.begun - stream.entries.size() < mark.begun) {
    Entry entry = std::move(stream.entries.front());
    stream.entries.pop_front();
    if (entry.waits) reach(entry.mark, noted);
    else arrive(entry, noted);
  }
}

// Lets copies from other cards arrive whose target `card` touches.
void arrive_at(int card, const Part& part, Noted& noted) {
  for (int from = 0; from < kMost; from++)
    for (int64_t number = 1; number < static_cast<int64_t>(cards[from].streams.size()); number++) {
      Stream& stream = cards[from].streams[number];
      uint64_t place = stream.begun - stream.entries.size(), needed = 0;
      for (auto& entry : stream.entries) {
        place++;
        if (entry.receiver == card && overlap(entry.to, part.begin, part.bytes)) needed = place;
      }
      if (needed) reach({from, number, needed, 0}, noted);
    }
}

}  // namespace

int64_t current_stream(int card) { return stream_here[card]; }
int64_t exchange_stream(int card, int64_t stream) { return std::exchange(stream_here[card], stream); }

int64_t new_stream(int card) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  cards[card].streams.emplace_back();
  return static_cast<int64_t>(cards[card].streams.size()) - 1;
}

Mark mark_of(int card, int64_t stream) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  Stream& found = cards[card].streams[stream];
  return {card, stream, found.begun, stream ? found.seen[card] : cards[card].operators};
}

// Whatever `stream` of `card` is told from now on comes behind `mark`.
void wait_for(int card, int64_t stream, const Mark& mark) {
  Noted noted;
  {
    std::lock_guard<std::recursive_mutex> guard(lock);
    Stream& waiting = cards[card].streams[stream];
    waiting.seen[mark.card] = std::max(waiting.seen[mark.card], mark.operators);
    if (!stream) {
      if (mark.stream) reach(mark, noted);  // computing streams are never behind
    } else if (mark.stream) {
      Entry entry;
      entry.waits = true, entry.mark = mark;
      waiting.entries.push_back(std::move(entry));
      waiting.begun++;
    }
  }
  tell(noted);
}

void freed(const char* data, size_t bytes) {
  Noted noted;
  {
    std::lock_guard<std::recursive_mutex> guard(lock);
    for (auto& card : cards) card.written.erase(data);
    for (auto& card : cards)
      for (auto& stream : card.streams)
        for (auto& entry : stream.entries) {
          bool from = entry.staged.empty() && overlap(entry.from, data, bytes);
          if (entry.waits || !(from || overlap(entry.to, data, bytes))) continue;
          if (!from && entry.receiver >= 0) {  // in the order of the receiver's stream
            entry.to = Part{};
            continue;
          }
          noted.emplace_back("freed while it was copied", entry.site);
          entry.to = entry.from = Part{};  // said once
        }
  }
  tell(noted);
}

void made(int card, const char* data, size_t bytes) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  cards[card].written[data] = {bytes, cards[card].operators};
}

void touched(int card, const Part& part, bool writes) {
  Noted noted;
  {
    std::lock_guard<std::recursive_mutex> guard(lock);
    cards[card].operators++;
    arrive_at(card, part, noted);
    if (writes) cards[card].written[part.begin] = {part.bytes, cards[card].operators};
    for (auto& one : cards)
      for (auto& stream : one.streams)
        for (auto& entry : stream.entries) {
          if (entry.waits || !entry.staged.empty()) continue;
          if (overlap(entry.to, part.begin, part.bytes))
            noted.emplace_back(writes ? "written before it arrived" : "read before it arrived", entry.site);
          else if (writes && overlap(entry.from, part.begin, part.bytes))
            noted.emplace_back("changed before it was copied", entry.site);
        }
  }
  tell(noted);
}

void begin_copy(int card, const Part& to, const Part& from, bool staged, int source) {
  Entry copy;
  int64_t stream = current_stream(card);
  copy.site = note("copy not waited for");
  Noted noted;
  {
    std::lock_guard<std::recursive_mutex> guard(lock);
    Stream& own = cards[card].streams[stream];
    copy.to = to, copy.from = from;
    copy.to_storage = Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(to.storage));
    copy.from_storage = Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(from.storage));
    copy.ordered = !stream || own.seen[card] >= cards[card].operators;
    if (source >= 0) copy.ordered &= own.seen[source] >= last_write(cards[source], from);
    if (!copy.ordered) noted.emplace_back("began before what was computed", copy.site);
    if (staged) copy.staged.assign(from.begin, from.begin + from.bytes);
    std::memset(to.begin, 0xFF, to.bytes);
    own.entries.push_back(std::move(copy));
    own.begun++;
  }
  tell(noted);
}

void begin_copy_between(int card, int receiver, const Part& to, const Part& from) {
  Entry copy;
  int64_t stream = current_stream(card);
  copy.site = note("copy between cards");
  Noted noted;
  {
    std::lock_guard<std::recursive_mutex> guard(lock);
    Stream& own = cards[card].streams[stream];
    copy.to = to, copy.from = from, copy.receiver = receiver;
    copy.to_storage = Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(to.storage));
    copy.from_storage = Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(from.storage));
    copy.ordered = own.seen[card] >= last_write(cards[card], from);
    if (!copy.ordered) noted.emplace_back("began before what was computed", copy.site);
    std::memset(to.begin, 0xFF, to.bytes);
    own.entries.push_back(std::move(copy));
    own.begun++;
  }
  tell(noted);
}

void synchronize(int card, int64_t stream) {
  Noted noted;
  {
    std::lock_guard<std::recursive_mutex> guard(lock);
    for (int64_t one = 0; one < static_cast<int64_t>(cards[card].streams.size()); one++)
      if (stream < 0 || one == stream) reach(mark_of(card, one), noted);
  }
  tell(noted);
}

void reach(const Mark& mark) {
  Noted noted;
  {
    std::lock_guard<std::recursive_mutex> guard(lock);
    reach(mark, noted);
  }
  tell(noted);
}

size_t on_the_way(int card) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  size_t found = 0;
  for (auto& stream : cards[card].streams) found += stream.entries.size();
  return found;
}

}  // namespace card

