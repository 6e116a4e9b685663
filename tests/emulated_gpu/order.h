// The order that streams, events and waits of the host give to uses of memory, and errors where there is none.
//
// Everything on the emulated GPU happens at once. What a real one may do later or at the same time is found by clocks,
// as in detectors of races between threads: each stream counts its uses of memory, and knows which ones of the other
// streams its next use comes after. A copy between pinned memory and the GPU that the host does not wait for is made late:
// to the host when the host has waited, before which the memory holds rubbish; from the host at once, but what it read must
// still be there then. All functions need `mutex`.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
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
  size_t size;
  StreamKey stream;  // current when it was allocated: one that is freed goes to a later allocation there
  std::vector<Use> uses;
};

struct Copy {
  std::set<StreamKey> streams;  // a wait for any of them is one for the copy
  bool to_host;
  at::Tensor host;
  at::Tensor content;
};

inline std::recursive_mutex mutex;
inline std::map<StreamKey, Clock> clocks;
inline Clock host;  // what the host has waited for, which all that it starts comes after
inline std::map<size_t, Block> blocks;  // by their first byte
inline std::map<StreamKey, std::vector<Use>> freed;  // uses of memory that has been freed, by the block's stream
inline std::vector<Copy> copies;                     // that the host has not waited for
inline int64_t num_waits = 0;

inline StreamKey stream_key(int device, int64_t stream) { return device * 1'000'000 + stream; }
inline int device_of(StreamKey stream) { return stream / 1'000'000; }

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
      is_known = true;
    }
  }
  if (!is_known) uses.push_back({stream, number, begin, end, writes, operation});
  // Those that everything on all streams comes after say nothing any more.
  if (uses.size() % 256 == 0) {
    auto is_over = [](const Use& use) {
      return std::all_of(clocks.begin(), clocks.end(), [&](auto& each) { return is_before(use, each.first); });
    };
    uses.erase(std::remove_if(uses.begin(), uses.end(), is_over), uses.end());
  }
}

inline void allocate(void* memory, size_t size, StreamKey stream) {
  for (const auto& use : freed[stream])
    TORCH_CHECK(is_before(use, stream), "memory was freed, and is given out again in stream ", stream, ", while stream ",
                use.stream, " may still use it in ", use.operation, "; keep the tensor until one has waited for the other");
  freed[stream].clear();
  blocks[reinterpret_cast<size_t>(memory)] = {size, stream, {}};
}

inline void release(void* memory) {
  auto block = blocks.find(reinterpret_cast<size_t>(memory));
  if (block == blocks.end()) return;
  auto& uses = freed[block->second.stream];
  uses.insert(uses.end(), block->second.uses.begin(), block->second.uses.end());
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

// The host waits for ``stream``.
inline void host_waits(StreamKey stream) {
  ++num_waits;
  merge(host, clock_of(stream));
  for (auto& each : clocks) merge(each.second, host);
  std::vector<Copy> ended, others;
  for (auto& copy : copies) (copy.streams.count(stream) ? ended : others).push_back(copy);
  copies.swap(others);
  for (auto& copy : ended) {
    if (copy.to_host) copy.host.copy_(copy.content);
    else TORCH_CHECK(are_equal(copy.host, copy.content), "pinned memory ", copy.host.sizes(),
                     " has changed before its copy to the GPU was waited for");
  }
}

inline void host_waits_for_device(int device) {
  const auto known = clocks;
  for (const auto& each : known)
    if (device_of(each.first) == device) host_waits(each.first);
}

}  // namespace order
