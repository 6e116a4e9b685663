// The order that streams, events and waits of the host give to uses of memory, and errors where there is none.
//
// Everything on the emulated GPU happens at once. What a real one may do later or at the same time is found by clocks,
// as in detectors of races between threads: each stream counts its uses of memory, and knows which ones of the other
// streams its next use comes after. A copy between pinned memory and the GPU that the host does not wait for ends late:
// to the host when the host has waited, before which the memory holds rubbish; from the host at once, but what it read
// must still be there then.
//
// All functions need `mutex`. Who has it may free nothing that Python owns, whose lock another may hold that waits for it.
// The variables are never destroyed: at the end of the process they may hold memory of modules that have gone.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace order {

using StreamKey = int64_t;
using Clock = std::map<StreamKey, int64_t>;  // the last use of each stream that is known to have ended

struct Use {
  StreamKey stream;
  int64_t number;
  size_t begin, end;  // bytes of memory
  bool writes;
  std::string operation;
};

struct Block {
  StreamKey stream;  // current when it was allocated: one that is freed goes to a later allocation there
  std::vector<Use> uses;
  size_t size;
  std::set<StreamKey> recorded;  // by Tensor.record_stream: none gets the memory before their uses have ended
};

struct Copy {
  std::set<StreamKey> streams;  // a wait for any of them is one for the copy
  bool to_host;
  at::Tensor host;
  at::Tensor content;
};

inline auto& mutex = *new std::recursive_mutex;
inline auto& clocks = *new std::map<StreamKey, Clock>;
inline auto& host = *new Clock;  // what the host has waited for, which all that it starts comes after
inline auto& blocks = *new std::map<size_t, Block>;  // by their first byte
inline auto& freed = *new std::map<StreamKey, std::vector<Use>>;  // uses of freed memory, by the block's stream
inline auto& copies = *new std::vector<Copy>;                     // that the host has not waited for

inline auto& in_use = *new std::map<int64_t, int64_t>;            // bytes, by device
inline auto& most_in_use = *new std::map<int64_t, int64_t>;       // so far

inline StreamKey stream_key(int device, int64_t stream) { return device * 1'000'000 + stream; }

inline void merge(Clock& clock, const Clock& other) {
  for (const auto& [stream, number] : other) clock[stream] = std::max(clock[stream], number);
}

inline Clock& clock_of(StreamKey stream) {
  auto found = clocks.find(stream);
  return found != clocks.end() ? found->second : clocks.emplace(stream, host).first->second;
}

inline bool is_before(const Use& use, StreamKey stream) {
  return use.stream == stream || clock_of(stream)[use.stream] >= use.number;
}

inline void count_use(const at::Tensor& tensor, StreamKey stream, bool writes, const std::string& operation) {
  if (tensor.numel() == 0) return;
  size_t begin = reinterpret_cast<size_t>(tensor.data_ptr()), elements = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) elements += (tensor.size(i) - 1) * tensor.stride(i);
  const size_t end = begin + elements * tensor.itemsize();
  auto place = blocks.upper_bound(begin);
  if (place == blocks.begin()) return;
  auto& uses = std::prev(place)->second.uses;
  const int64_t number = ++clock_of(stream)[stream];
  bool is_known = false;
  for (auto& use : uses) {
    if (use.end <= begin || use.begin >= end) continue;
    TORCH_CHECK(!(writes || use.writes) || is_before(use, stream), operation, " in stream ", stream, " does not wait for ",
                use.operation, " in stream ", use.stream, ", which uses the same memory; use Stream.wait_stream");
    if (use.stream == stream && use.begin == begin && use.end == end && use.writes == writes) {
      use.number = number;
      use.operation = operation;
      is_known = true;
    }
  }
  if (!is_known) uses.push_back({stream, number, begin, end, writes, operation});
  // Those that the host has waited for say nothing any more.
  auto is_over = [](const Use& use) { return host[use.stream] >= use.number; };
  if (uses.size() % 256 == 0) uses.erase(std::remove_if(uses.begin(), uses.end(), is_over), uses.end());
}

inline void count_bytes(StreamKey stream, int64_t size) {
  auto& bytes = in_use[stream / 1'000'000] += size;
  most_in_use[stream / 1'000'000] = std::max(most_in_use[stream / 1'000'000], bytes);
}

inline void allocate(void* memory, size_t size, StreamKey stream) {
  for (const auto& use : freed[stream])
    TORCH_CHECK(is_before(use, stream), "memory was freed, and is given out again in stream ", stream, ", while stream ",
                use.stream, " may still use it in ", use.operation, "; keep the tensor until one has waited for the other");
  freed[stream].clear();
  count_bytes(stream, size);
  const size_t begin = reinterpret_cast<size_t>(memory);
  blocks[begin] = {stream, {{stream, ++clock_of(stream)[stream], begin, begin + size, true, "its allocation"}}, size};
}

inline void release(void* memory) {
  auto block = blocks.find(reinterpret_cast<size_t>(memory));
  if (block == blocks.end()) return;
  const auto& [stream, uses, size, recorded] = block->second;
  for (const auto& use : uses) if (!recorded.count(use.stream)) freed[stream].push_back(use);
  count_bytes(stream, -static_cast<int64_t>(size));
  blocks.erase(block);
}

inline void stream_waits(StreamKey waiting, StreamKey stream) {
  merge(clock_of(waiting), clock_of(stream));
  for (auto& copy : copies)
    if (copy.streams.count(stream)) copy.streams.insert(waiting);
}

inline bool are_equal(const at::Tensor& one, const at::Tensor& other) {
  const auto a = one.contiguous(), b = other.contiguous();
  return std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

// The host waits for ``stream``; ``ended``, for the copies that have, is to be freed without `mutex`.
inline void host_waits(StreamKey stream, std::vector<Copy>& ended) {
  merge(host, clock_of(stream));
  for (auto& each : clocks) merge(each.second, host);
  auto goes_on = [&](const Copy& copy) { return !copy.streams.count(stream); };
  auto place = std::stable_partition(copies.begin(), copies.end(), goes_on);
  ended.assign(std::make_move_iterator(place), std::make_move_iterator(copies.end()));
  copies.erase(place, copies.end());
  const c10::InferenceMode anything_may_be_written;
  for (auto& copy : ended) {
    if (copy.to_host) copy.host.copy_(copy.content);
    else TORCH_CHECK(are_equal(copy.host, copy.content), "pinned memory ", copy.host.sizes(),
                     " has changed before its copy to the GPU was waited for");
  }
}

}  // namespace order
